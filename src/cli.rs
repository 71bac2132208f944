//! The command line (to come).
