//! The only writer to stdout and stderr (to come).
