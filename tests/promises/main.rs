//! meshlock's promises, each shown through the real binary against a real etcd. One binary, since
//! linking is what takes the time; one file per promise, where a test for a mended bug goes as well:
//! into the file of the promise that it broke, under the URL of its issue.
//!
//! `harness` starts and hurts etcd, meshlock, networks and terminals. Nothing here sleeps in the hope that
//! something will have happened by then: [`harness::eventually`] polls until it has.
#![expect(clippy::expect_used, reason = "a failed test should panic")]

mod harness;

mod auth;
mod config;
mod connection;
mod contention;
mod cost;
mod discovery;
mod doctor;
mod exit_status;
mod handover;
mod history;
mod interop;
mod loss;
mod network;
mod origin;
mod records;
mod release;
mod run;
mod settings;
mod shared_key;
mod signals;
mod status;
mod terminal;
mod tls;
mod tree;
mod unshown;
mod vanished;
mod verify;
mod waiting_line;
mod watching;
