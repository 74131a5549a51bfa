//! How the instances read.

use std::time::Duration;

use clap::Args;
use eventhubs_checkpoint::processor::ProcessorConfig;

use crate::chaos::seconds;

/// The settings of a processor for batches and prefetching.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct Reading {
    /// How many events of a partition are prefetched.
    #[arg(long, default_value_t = 300, value_name = "EVENTS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub prefetch: u32,

    /// The maximum number of events of a batch.
    #[arg(long, default_value_t = 100, value_name = "EVENTS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_batch_size: u32,

    /// How long a batch that is not full waits for more events.
    #[arg(long, default_value = "0", value_name = "SECONDS", value_parser = seconds)]
    pub max_batch_wait: Duration,
}

impl Reading {
    /// Returns the same settings as arguments of an instance.
    pub fn args(&self) -> [String; 3] {
        let Self { prefetch, max_batch_size, max_batch_wait } = self;
        [
            format!("--prefetch={prefetch}"),
            format!("--max-batch-size={max_batch_size}"),
            format!("--max-batch-wait={}", max_batch_wait.as_secs_f64()),
        ]
    }

    pub fn configure(&self, config: ProcessorConfig) -> ProcessorConfig {
        config
            .with_prefetch(self.prefetch as usize)
            .with_max_batch_size(self.max_batch_size as usize)
            .with_max_batch_wait(self.max_batch_wait)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        reading: Reading,
    }

    #[test]
    fn an_instance_gets_the_settings_of_the_runner() {
        let reading = Reading { prefetch: 3000, max_batch_size: 10, max_batch_wait: Duration::from_millis(1500) };
        let line = Line::parse_from(["worker".to_owned()].into_iter().chain(reading.args()));
        assert_eq!(line.reading, reading);
    }

    #[test]
    fn the_defaults_are_those_of_the_processor() {
        let (usual, line) = (ProcessorConfig::default(), Line::parse_from(["worker"]));
        let config = line.reading.configure(ProcessorConfig::default());
        assert_eq!(
            (config.prefetch, config.max_batch_size, config.max_batch_wait),
            (usual.prefetch, usual.max_batch_size, usual.max_batch_wait)
        );
    }
}
