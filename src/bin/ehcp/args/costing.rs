//! The arguments of `ehcp cost`.

use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use eventhubs_checkpoint::LeaseScope;
use eventhubs_checkpoint::cost::RequestPrices;
use eventhubs_checkpoint::processor::{CheckpointPolicy, ProcessorConfig};
use eventhubs_checkpoint::store::StoreConfig;

use crate::exit::{Failure, Result};

#[derive(Debug, ClapArgs)]
pub struct CostArgs {
    /// The number of partitions, without a connection [default: the partitions of the group that have a record].
    #[arg(long, value_name = "N", requires = "instances", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub partitions: Option<u32>,
    /// The number of instances [default: the live members of the group].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub instances: Option<u32>,
    /// How many partitions always have events [default: all; of a group, those that have a checkpoint].
    #[arg(long, value_name = "N")]
    pub busy: Option<u32>,
    #[command(flatten)]
    pub settings: SettingArgs,
    #[command(flatten)]
    pub prices: PriceArgs,
}

/// The settings of the instances.
#[derive(Debug, ClapArgs)]
pub struct SettingArgs {
    /// The settings of `fast_failover`: lease duration 14s, interval 4s, lease scope `instance`.
    #[arg(long, conflicts_with_all = ["lease_duration", "interval", "lease_scope"])]
    pub fast_failover: bool,
    /// `StoreConfig::with_lease_duration` [default: 60s].
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub lease_duration: Option<Duration>,
    /// `BalancerConfig::with_load_balancing_interval` [default: 10s].
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub interval: Option<Duration>,
    /// `BalancerConfig::with_beacon_interval` [default: 3s].
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub beacon_interval: Option<Duration>,
    /// `BalancerConfig::with_lease_scope` [default: partition].
    #[arg(long, value_enum, value_name = "SCOPE")]
    pub lease_scope: Option<ScopeArg>,
    /// `CheckpointPolicy::with_interval` [default: 5s].
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub checkpoint_interval: Option<Duration>,
}

impl SettingArgs {
    /// Returns the settings of a processor and of its store. Fails if they are no valid ones.
    pub fn to_config(&self) -> Result<(ProcessorConfig, StoreConfig)> {
        let mut processor = ProcessorConfig::default();
        let mut store = StoreConfig::default();
        if self.fast_failover {
            processor = ProcessorConfig::fast_failover();
            store = StoreConfig::fast_failover();
        }
        if let Some(lease_duration) = self.lease_duration {
            store = store.with_lease_duration(lease_duration);
        }
        if let Some(interval) = self.interval {
            processor = processor.with_balancer(|balancer| balancer.with_load_balancing_interval(interval));
        }
        if let Some(interval) = self.beacon_interval {
            processor = processor.with_balancer(|balancer| balancer.with_beacon_interval(interval));
        }
        if let Some(scope) = self.lease_scope {
            processor = processor.with_balancer(|balancer| balancer.with_lease_scope(scope.into()));
        }
        if let Some(interval) = self.checkpoint_interval {
            processor = processor.with_checkpoint_policy(CheckpointPolicy::default().with_interval(interval));
        }
        processor.check_settings(&store).map_err(|error| Failure::usage(error.to_string()))?;
        Ok((processor, store))
    }
}

/// The prices of the account, in USD per 10,000 requests. A group in which nothing changes creates no records, so the
/// price of a write plays no part.
#[derive(Debug, ClapArgs)]
pub struct PriceArgs {
    /// USD per 10,000 list and create container operations [default: 0.055, a sample].
    #[arg(long = "price-list", value_name = "USD", value_parser = parse_price)]
    pub list: Option<f64>,
    /// USD per 10,000 other operations [default: 0.0044, a sample].
    #[arg(long = "price-other", value_name = "USD", value_parser = parse_price)]
    pub other: Option<f64>,
}

impl PriceArgs {
    /// Returns the prices. The sample replaces each price that is not given.
    pub fn to_prices(&self) -> RequestPrices {
        let sample = RequestPrices::sample();
        RequestPrices { list: self.list.unwrap_or(sample.list), other: self.other.unwrap_or(sample.other), ..sample }
    }

    /// Returns whether any price is one of the sample.
    pub fn has_sample(&self) -> bool {
        [self.list, self.other].contains(&None)
    }
}

fn parse_price(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(price) if (0.0..1e9).contains(&price) => Ok(price),
        _ => Err("a price is a number of USD, such as 0.0044".to_owned()),
    }
}

/// What keeps the leases of an instance alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScopeArg {
    /// A renewal of each partition.
    Partition,
    /// One heartbeat.
    Instance,
}

impl From<ScopeArg> for LeaseScope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Partition => Self::Partition,
            ScopeArg::Instance => Self::Instance,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_is_a_number_that_is_not_negative() {
        assert_eq!(parse_price("0.0044"), Ok(0.0044));
        for wrong in ["-1", "NaN", "inf", "1e300", "0,05", ""] {
            assert!(parse_price(wrong).is_err(), "{wrong}");
        }
    }

    /// As the help says.
    #[test]
    fn the_defaults_are_those_of_the_library() {
        let command = CostArgs::augment_args(clap::Command::new("cost"));
        let RequestPrices { list, other, .. } = RequestPrices::sample();
        for (option, default) in [
            ("price-list", list.to_string()),
            ("price-other", other.to_string()),
            ("lease-duration", format!("{:?}", StoreConfig::default().lease_duration)),
            ("interval", format!("{:?}", ProcessorConfig::default().balancer.load_balancing_interval)),
            ("checkpoint-interval", format!("{:?}", CheckpointPolicy::default().interval.unwrap())),
        ] {
            let help = command.get_arguments().find(|argument| argument.get_long() == Some(option)).unwrap().get_help();
            let help = help.unwrap().to_string();
            assert!(help.contains(&format!("[default: {default}")), "{option}: {help}");
        }
    }
}
