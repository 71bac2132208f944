//! The keeper's decisions (to come).
