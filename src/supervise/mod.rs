//! Supervision of the command (to come).
