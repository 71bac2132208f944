//! parse → settings → command → outcome → exit (to come).

fn main() {}
