//! Captures log events together with the spans that they are in.

#![allow(dead_code, reason = "each test binary uses its own part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use eventhubs_checkpoint::ConsumerGroup;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// The target of the events of an application in these tests.
pub const APPLICATION: &str = "application";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(pub BTreeMap<&'static str, String>);

impl Fields {
    pub fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

/// One event, and the spans that it is in, from the outermost to the innermost.
#[derive(Clone, Debug)]
pub struct Record {
    pub target: String,
    pub level: Level,
    pub fields: Fields,
    pub spans: Vec<(&'static str, Fields)>,
}

impl Record {
    pub fn message(&self) -> &str {
        self.fields.get("message")
    }

    fn is_of_the_crate(&self) -> bool {
        self.target.starts_with("eventhubs_checkpoint")
    }

    /// The fields of the only span of this name.
    pub fn span(&self, name: &str) -> &Fields {
        let mut spans = self.spans.iter().filter(|(known, _)| *known == name);
        match (spans.next(), spans.next()) {
            (Some((_, fields)), None) => fields,
            (None, _) => panic!("no span {name}: {self:?}"),
            (Some(_), Some(_)) => panic!("several spans {name}: {self:?}"),
        }
    }

    pub fn is_in(&self, name: &str) -> bool {
        self.spans.iter().any(|(known, _)| *known == name)
    }

    pub fn instance(&self) -> Instance {
        let span = self.span("processor");
        Instance::of(span.get("event_hub"), span.get("consumer_group"), span.get("owner_id"))
    }
}

/// Event hub, consumer group and owner ID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instance(String, String, String);

impl Instance {
    fn of(event_hub: &str, consumer_group: &str, owner: &str) -> Self {
        Self(event_hub.to_owned(), consumer_group.to_owned(), owner.to_owned())
    }

    pub fn new(group: &ConsumerGroup, owner: &str) -> Self {
        Self::of(group.event_hub(), group.name(), owner)
    }

    /// Logs an event as an application does in a callback of its handler.
    pub fn log(&self, partition: &str, callback: &str) {
        let Self(event_hub, consumer_group, owner) = self;
        tracing::info!(target: APPLICATION, event_hub, consumer_group, owner, partition, callback, "called");
    }
}

#[derive(Clone, Default)]
pub struct Scoped(Arc<Mutex<Vec<Record>>>);

impl Scoped {
    pub fn records(&self) -> Vec<Record> {
        self.0.lock().unwrap().clone()
    }

    /// The events of this crate in the span of this instance.
    pub fn of(&self, instance: &Instance) -> Vec<Record> {
        let of_the_crate = self.records().into_iter().filter(Record::is_of_the_crate);
        of_the_crate.filter(|record| record.instance() == *instance).collect()
    }

    pub fn count(&self, instance: &Instance, message: &str) -> usize {
        self.of(instance).iter().filter(|record| record.message() == message).count()
    }

    /// Checks that every event of this crate is in the span of one of these instances, that each instance has events,
    /// and that events of handlers are in the spans of their instance and of their partition.
    pub fn check(&self, instances: &[Instance]) {
        let records = self.records();
        let found: BTreeSet<_> =
            records.iter().filter(|record| record.is_of_the_crate()).map(Record::instance).collect();
        assert_eq!(found, instances.iter().cloned().collect());
        for record in records.iter().filter(|record| record.target == APPLICATION) {
            let [event_hub, group, owner] =
                ["event_hub", "consumer_group", "owner"].map(|field| record.fields.get(field));
            assert_eq!(record.instance(), Instance::of(event_hub, group, owner), "{record:?}");
            assert_eq!(record.span("partition").get("partition_id"), record.fields.get("partition"), "{record:?}");
        }
        for record in records.iter().filter(|record| record.is_of_the_crate() && record.is_in("partition")) {
            assert_eq!(record.spans[0].0, "processor", "{record:?}");
            let partition = record.fields.get("partition_id");
            assert!(["", record.span("partition").get("partition_id")].contains(&partition), "{record:?}");
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Scoped {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        if !metadata.target().starts_with("eventhubs_checkpoint") && metadata.target() != APPLICATION {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let spans = context.event_scope(event).into_iter().flatten();
        let mut spans: Vec<_> =
            spans.map(|span| (span.name(), span.extensions().get::<Fields>().cloned().unwrap_or_default())).collect();
        spans.reverse();
        let record = Record { target: metadata.target().to_owned(), level: *metadata.level(), fields, spans };
        self.0.lock().unwrap().push(record);
    }
}
