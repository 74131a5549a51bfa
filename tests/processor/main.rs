//! Whole instances with a hub and a container in memory, mostly in paused time: they share, move, stop and resume
//! partitions. Each file has the rules of one area, and `support` what several of them share.

mod administration;
mod balance;
#[path = "../common/captured.rs"]
mod captured;
mod checkpoints;
mod clocks;
mod dead_letters;
mod delivery;
mod each_event;
mod end_positions;
mod failures;
mod handoffs;
mod idle;
#[path = "../common/intercepted.rs"]
mod intercepted;
mod invalid_checkpoints;
mod keda;
mod leases;
mod links;
mod observability;
mod outages;
mod own_positions;
mod partition_handlers;
mod pauses;
#[path = "../common/placing.rs"]
mod placing;
mod plans;
mod poison_events;
#[path = "../common/hub_client/publish.rs"]
mod publish;
#[cfg(feature = "metrics")]
#[path = "../common/recorded_metrics.rs"]
mod recorded_metrics;
mod resets;
mod restarts;
#[path = "../common/service.rs"]
mod service;
mod settings;
mod shutdown;
mod stalls;
mod starts;
mod streams;
mod support;
mod undecodable;
#[path = "../common/world.rs"]
mod world;
