//! One file per subcommand (to come).
