# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_meshlock_global_optspecs
    string join \n h/help V/version
end

function __fish_meshlock_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_meshlock_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_meshlock_using_subcommand
    set -l cmd (__fish_meshlock_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c meshlock -n "__fish_meshlock_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c meshlock -n "__fish_meshlock_needs_command" -s V -l version -d 'Print version'
complete -c meshlock -n "__fish_meshlock_needs_command" -f -a "run" -d 'Take a lock, run a command, let the lock go'
complete -c meshlock -n "__fish_meshlock_needs_command" -f -a "status" -d 'Show who holds a lock, who waits, and how the last runs ended'
complete -c meshlock -n "__fish_meshlock_needs_command" -f -a "history" -d 'Show how the last runs ended, newest first'
complete -c meshlock -n "__fish_meshlock_needs_command" -f -a "verify" -d 'Check from inside a command whether its lock is still held'
complete -c meshlock -n "__fish_meshlock_needs_command" -f -a "doctor" -d 'Check whether etcd, our rights in it and this machine are fit for locks'
complete -c meshlock -n "__fish_meshlock_needs_command" -f -a "config" -d 'Show which settings apply, and where each comes from'
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -s w -l wait -d 'Wait this long for the lock, then exit [default: without limit]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -s E -l conflict-exit-code -d 'Exit with N if another has the lock [default: 75]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l ttl -d 'How soon others may start if this machine vanishes [default: 30s]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l grace -d 'From the stop signal to SIGKILL [default: a sixth of the TTL, at most 5s]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l stop-signal -d 'The signal that asks the command to stop [default: TERM]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l lost-grace -d 'From the proof that the lock is lost to SIGKILL [default: 0]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l max-runtime -d 'Stop the command when it has run this long, and exit with 124 [default: without limit]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l stragglers -d 'What becomes of processes that the command leaves running [default: leave]' -r -f -a "leave\t'Leave them alone; the lock goes when the command itself ends'
wait\t'Keep the lock until the last of them has ended'
kill\t'Kill them, then release'"
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l release-timeout -d 'Try this long to release the lock at the end [default: 5s]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l report -d 'Write the outcome to FILE as JSON' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l keep -d 'Keep the records of this many runs in etcd, 0 to 1000 [default: 20]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l owner -d 'Who answers for this run, for the record' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l reason -d 'Why it runs, for the record' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l route -d 'Who or what to go to when it fails, for the record' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l expect -d 'The exit statuses that count as success, for the record [default: 0]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l trigger -d 'What set the run off, for the record [default: what can be found]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l system -d 'Which system it belongs to, for the record [default: the CI project, unit or crontab, and the host]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l prefix -d 'Everything of meshlock\'s lies under this key prefix [default: meshlock/]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l lock-key -d 'Share the lock KEY with etcdctl lock or a Go program' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l endpoints -d 'etcd\'s members, separated by commas [default: 127.0.0.1:2379]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l discovery-srv -d 'Ask DNS for etcd\'s members, as etcdctl does' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l discovery-srv-name -d 'Which of several clusters in the domain of --discovery-srv' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l dial-timeout -d 'How long the first contact with etcd may take [default: 5s]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l cacert -d 'The certificates to check the servers against, PEM [default: the system\'s, for https]' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l cert -d 'The client\'s certificate, PEM' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l key -d 'The client certificate\'s private key, PEM, not encrypted' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l tls-server-name -d 'What the servers\' certificates must be for [default: the host in the endpoint]' -r -f -a "(__fish_print_hostnames)"
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l user -d 'The etcd user' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l password-file -d 'The file with the etcd user\'s password' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l config -d 'Read the settings from FILE and no other [default: ~/.config/meshlock/config.toml, then /etc/meshlock/config.toml]' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -s n -l no-wait -d 'Do not wait: if another has the lock, exit at once'
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -l record-args -d 'Record the command\'s arguments too'
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -s q -l quiet -d 'Say nothing of waiting and contention'
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -s v -l verbose -d 'Say more: what was decided, and what was left running'
complete -c meshlock -n "__fish_meshlock_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l warn-after -d 'With --check: exit with 0 unless held for longer than this, then with 1' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l prefix -d 'Everything of meshlock\'s lies under this key prefix [default: meshlock/]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l lock-key -d 'Share the lock KEY with etcdctl lock or a Go program' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l endpoints -d 'etcd\'s members, separated by commas [default: 127.0.0.1:2379]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l discovery-srv -d 'Ask DNS for etcd\'s members, as etcdctl does' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l discovery-srv-name -d 'Which of several clusters in the domain of --discovery-srv' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l dial-timeout -d 'How long the first contact with etcd may take [default: 5s]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l cacert -d 'The certificates to check the servers against, PEM [default: the system\'s, for https]' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l cert -d 'The client\'s certificate, PEM' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l key -d 'The client certificate\'s private key, PEM, not encrypted' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l tls-server-name -d 'What the servers\' certificates must be for [default: the host in the endpoint]' -r -f -a "(__fish_print_hostnames)"
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l user -d 'The etcd user' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l password-file -d 'The file with the etcd user\'s password' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l config -d 'Read the settings from FILE and no other [default: ~/.config/meshlock/config.toml, then /etc/meshlock/config.toml]' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l json -d 'As JSON, in the format of docs/status.schema.json'
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l prometheus -d 'As Prometheus\' text format, for node-exporter\'s textfile collector'
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l watch -d 'Draw anew at each change in etcd, until Ctrl-C'
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l check -d 'For monitoring: exit with 0 if free, with 75 if not'
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -l ttl-left -d 'Ask for the leases\' TTL of all locks, also where there are more than 100'
complete -c meshlock -n "__fish_meshlock_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -s n -l number -d 'At most this many runs, and at least one [default: 20]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l prefix -d 'Everything of meshlock\'s lies under this key prefix [default: meshlock/]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l lock-key -d 'Share the lock KEY with etcdctl lock or a Go program' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l endpoints -d 'etcd\'s members, separated by commas [default: 127.0.0.1:2379]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l discovery-srv -d 'Ask DNS for etcd\'s members, as etcdctl does' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l discovery-srv-name -d 'Which of several clusters in the domain of --discovery-srv' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l dial-timeout -d 'How long the first contact with etcd may take [default: 5s]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l cacert -d 'The certificates to check the servers against, PEM [default: the system\'s, for https]' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l cert -d 'The client\'s certificate, PEM' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l key -d 'The client certificate\'s private key, PEM, not encrypted' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l tls-server-name -d 'What the servers\' certificates must be for [default: the host in the endpoint]' -r -f -a "(__fish_print_hostnames)"
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l user -d 'The etcd user' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l password-file -d 'The file with the etcd user\'s password' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l config -d 'Read the settings from FILE and no other [default: ~/.config/meshlock/config.toml, then /etc/meshlock/config.toml]' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l failed -d 'Only runs that did not end as was expected of them'
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -l json -d 'As JSON, in the format of docs/history.schema.json'
complete -c meshlock -n "__fish_meshlock_using_subcommand history" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c meshlock -n "__fish_meshlock_using_subcommand verify" -l at-least -d 'How much time must be left [default: any]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand verify" -l endpoints -d 'etcd\'s members, separated by commas [default: 127.0.0.1:2379]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand verify" -l discovery-srv -d 'Ask DNS for etcd\'s members, as etcdctl does' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand verify" -l discovery-srv-name -d 'Which of several clusters in the domain of --discovery-srv' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand verify" -l dial-timeout -d 'How long the first contact with etcd may take [default: 5s]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand verify" -l cacert -d 'The certificates to check the servers against, PEM [default: the system\'s, for https]' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand verify" -l cert -d 'The client\'s certificate, PEM' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand verify" -l key -d 'The client certificate\'s private key, PEM, not encrypted' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand verify" -l tls-server-name -d 'What the servers\' certificates must be for [default: the host in the endpoint]' -r -f -a "(__fish_print_hostnames)"
complete -c meshlock -n "__fish_meshlock_using_subcommand verify" -l user -d 'The etcd user' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand verify" -l password-file -d 'The file with the etcd user\'s password' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand verify" -s q -l quiet -d 'Say nothing where the lock is not held'
complete -c meshlock -n "__fish_meshlock_using_subcommand verify" -s v -l verbose -d 'Say how long it is held, too'
complete -c meshlock -n "__fish_meshlock_using_subcommand verify" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -l prefix -d 'Everything of meshlock\'s lies under this key prefix [default: meshlock/]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -l lock-key -d 'Share the lock KEY with etcdctl lock or a Go program' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -l endpoints -d 'etcd\'s members, separated by commas [default: 127.0.0.1:2379]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -l discovery-srv -d 'Ask DNS for etcd\'s members, as etcdctl does' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -l discovery-srv-name -d 'Which of several clusters in the domain of --discovery-srv' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -l dial-timeout -d 'How long the first contact with etcd may take [default: 5s]' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -l cacert -d 'The certificates to check the servers against, PEM [default: the system\'s, for https]' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -l cert -d 'The client\'s certificate, PEM' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -l key -d 'The client certificate\'s private key, PEM, not encrypted' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -l tls-server-name -d 'What the servers\' certificates must be for [default: the host in the endpoint]' -r -f -a "(__fish_print_hostnames)"
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -l user -d 'The etcd user' -r -f
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -l password-file -d 'The file with the etcd user\'s password' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -l config -d 'Read the settings from FILE and no other [default: ~/.config/meshlock/config.toml, then /etc/meshlock/config.toml]' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -l json -d 'Say it as one JSON object, with the facts'
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -s q -l quiet -d 'Say only what is not as it should be'
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -s v -l verbose -d 'Say each known defect of the servers\' versions in a line of its own'
complete -c meshlock -n "__fish_meshlock_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c meshlock -n "__fish_meshlock_using_subcommand config" -l config -d 'Read the settings from FILE and no other [default: ~/.config/meshlock/config.toml, then /etc/meshlock/config.toml]' -r -F
complete -c meshlock -n "__fish_meshlock_using_subcommand config" -l json -d 'As JSON, in the format of docs/config.schema.json'
complete -c meshlock -n "__fish_meshlock_using_subcommand config" -s h -l help -d 'Print help (see more with \'--help\')'
