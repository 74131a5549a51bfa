//! The records of other programs: written by the programs themselves where they can run here, otherwise byte for byte
//! as they write them.

pub mod blobs;
mod contents;
mod programs;

use std::io::Write;

pub use self::blobs::Blobs;
pub use self::contents::Offset;
use self::contents::{dapr_or_go, dotnet, java, node, python};
use crate::fleet::Fleet;
use crate::program::Program;
use crate::support::azurite;

/// The last processed event of each partition. Partition 2 has none.
pub const CHECKPOINTS: [(&str, Option<i64>); 3] = [("0", Some(7)), ("1", Some(12)), ("2", None)];

/// The owner in the records.
pub const OWNER: &str = "host-1";

/// A program whose records are migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    DotNet,
    Java,
    NodeJs,
    Python,
    Functions,
    Go,
    Dapr,
    Kafka,
}

impl Source {
    pub const ALL: [Self; 8] =
        [Self::DotNet, Self::Java, Self::NodeJs, Self::Python, Self::Functions, Self::Go, Self::Dapr, Self::Kafka];

    /// Returns the name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::DotNet => "EPH .NET",
            Self::Java => "EPH Java",
            Self::NodeJs => "EPH Node.js 2.1.1",
            Self::Python => "EPH Python 1.3.3",
            Self::Functions => "Functions 4",
            Self::Go => "EPH Go, Filebeat v1",
            Self::Dapr => "Dapr 1.9",
            Self::Kafka => "Kafka CSV",
        }
    }

    /// Returns the value of `--from`.
    pub fn option(self) -> &'static str {
        match self {
            Self::DotNet | Self::Java | Self::NodeJs | Self::Python => "eph",
            Self::Functions => "functions",
            Self::Go => "go-eph",
            Self::Dapr => "dapr",
            Self::Kafka => "kafka-csv",
        }
    }

    /// Writes the records of the program into a container, or into a file of the program that migrates them. Returns
    /// the further options of the migration.
    pub async fn write(self, fleet: &Fleet, program: &Program, container: &str) -> Vec<String> {
        let positions = CHECKPOINTS.map(|(partition, checkpoint)| {
            (partition, checkpoint.map(|number| (number, offset_of(fleet, partition, number))))
        });
        if self == Self::Kafka {
            let line = |(partition, position): &(&str, Option<Offset>)| {
                let number = position.as_ref()?.0;
                Some(format!("\"orders-app\",orders,{partition},{}\n\"other\",orders,{partition},0\n", number + 1))
            };
            program.write("offsets.csv", &positions.iter().filter_map(line).collect::<String>());
            return ["--file", "offsets.csv", "--source-group", "orders-app"].map(str::to_owned).into();
        }
        let blobs = Blobs::create(container).await;
        if !self.is_run(fleet, container, &positions).await {
            for (partition, position) in &positions {
                let (name, content) = self.record(partition, position.as_ref());
                blobs.put(&name, &content).await;
            }
        }
        vec!["--source-container".to_owned(), container.to_owned()]
    }

    /// Runs the program, if there is one that can run here.
    async fn is_run(self, fleet: &Fleet, container: &str, positions: &[(&str, Option<Offset>)]) -> bool {
        let storage = azurite::shared().await.unwrap().connection_string();
        let run = match self {
            Self::NodeJs => programs::node(fleet, &storage, container, positions).await,
            Self::Python => programs::python(&storage, container, positions).await,
            _ => return false,
        };
        if let Err(why) = run {
            // Shown although tests are silent when they pass.
            drop(writeln!(std::io::stderr(), "{} is not run: {why}", self.name()));
            return false;
        }
        let blobs = Blobs::create(container).await;
        for (partition, position) in positions {
            let (name, content) = self.record(partition, position.as_ref());
            let written = blobs.get(&name).await;
            assert_eq!(keys(&written), keys(&content), "{written} is not as it was thought to be");
        }
        true
    }

    /// Returns the name and the content of the blob of a partition.
    pub fn record(self, partition: &str, position: Option<&Offset>) -> (String, String) {
        match self {
            Self::DotNet => (format!("$Default/{partition}"), dotnet(partition, position)),
            Self::Java => (format!("$Default/{partition}"), java(partition, position)),
            Self::NodeJs => (format!("$Default/{partition}"), node(partition, position)),
            Self::Python => (partition.to_owned(), python(partition, position)),
            Self::Functions => (format!("localhost/orders/$Default/{partition}"), dotnet(partition, position)),
            Self::Go => (partition.to_owned(), dapr_or_go(partition, position)),
            Self::Dapr => (format!("dapr-orders-$Default-{partition}"), dapr_or_go(partition, position)),
            Self::Kafka => unreachable!("it has no blobs"),
        }
    }
}

/// Returns the offset of an event. All events of the partition have the same size.
pub fn offset_of(fleet: &Fleet, partition: &str, number: i64) -> String {
    let properties = fleet.hub.partition_properties(partition).unwrap();
    let offset: i64 = properties.last_enqueued_offset.parse().unwrap();
    (number * offset / properties.last_enqueued_sequence_number).to_string()
}

/// Returns the keys of a JSON text, in their order.
fn keys(text: &str) -> Vec<&str> {
    let parts: Vec<_> = text.split('"').collect();
    parts.windows(2).filter(|pair| pair[1].trim_start().starts_with(':')).map(|pair| pair[0]).collect()
}
