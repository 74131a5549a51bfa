//! Groups of balancing loops on one container, in paused time.

/// So named that `cargo test balance` runs everything in it.
mod balance_loop {
    mod cost;
    mod defects;
    mod given_back;
    mod group;
    mod idle;
    mod lease_scope;
    mod limits;
    mod outages;
    mod pace;
    mod reasons;
    mod settings;
    mod shares;
}
