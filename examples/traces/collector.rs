//! A collector: receives spans as OTLP over HTTP, in JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The kinds of OTLP.
pub const CLIENT: u8 = 3;
pub const PRODUCER: u8 = 4;
pub const CONSUMER: u8 = 5;

/// A request of an exporter.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Export {
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans {
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Deserialize)]
struct ScopeSpans {
    spans: Vec<ExportedSpan>,
}

/// A span.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportedSpan {
    pub trace_id: String,
    pub span_id: String,
    #[serde(default)]
    pub parent_span_id: String,
    pub name: String,
    pub kind: u8,
    #[serde(default, deserialize_with = "read_attributes")]
    pub attributes: BTreeMap<String, String>,
    #[serde(default)]
    pub links: Vec<Link>,
}

/// A link to another span.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    pub span_id: String,
    #[serde(default, deserialize_with = "read_attributes")]
    pub attributes: BTreeMap<String, String>,
}

/// Reads `[{"key": "a", "value": {"stringValue": "b"}}]`.
fn read_attributes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    #[derive(Deserialize)]
    struct Attribute {
        key: String,
        value: BTreeMap<String, Value>,
    }
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let read = Vec::<Attribute>::deserialize(deserializer)?;
    Ok(read.into_iter().filter_map(|it| Some((it.key, text(it.value.values().next()?)))).collect())
}

type Received = Arc<Mutex<Vec<ExportedSpan>>>;

/// A collector on a port of its own.
pub struct Collector {
    port: u16,
    received: Received,
}

impl Collector {
    pub async fn start() -> std::io::Result<Self> {
        let received = Received::default();
        let router = Router::new().route("/v1/traces", post(receive_spans)).with_state(Arc::clone(&received));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { port, received })
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}/v1/traces", self.port)
    }

    pub fn collected(&self) -> Collected {
        Collected(self.received.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

async fn receive_spans(State(received): State<Received>, Json(export): Json<Export>) -> Json<Value> {
    let scopes = export.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
    received.lock().unwrap_or_else(PoisonError::into_inner).extend(scopes.flat_map(|scope| scope.spans));
    Json(json!({}))
}

/// All spans that arrived.
pub struct Collected(Vec<ExportedSpan>);

#[cfg(test)]
impl Collected {
    /// Returns the only span with this name and this attribute.
    pub fn one(&self, name: &str, attribute: &str, value: &str) -> &ExportedSpan {
        let has = |span: &&ExportedSpan| {
            span.name == name && span.attributes.get(attribute).is_some_and(|found| found == value)
        };
        let found: Vec<_> = self.0.iter().filter(has).collect();
        assert_eq!(found.len(), 1, "{name}, {attribute}={value}: {:#?}", self.0);
        found[0]
    }

    pub fn child_of(&self, parent: &ExportedSpan, name: &str) -> &ExportedSpan {
        let is_child = |span: &&ExportedSpan| span.name == name && span.parent_span_id == parent.span_id;
        self.0.iter().find(is_child).unwrap_or_else(|| panic!("{name}: {:#?}", self.0))
    }
}

/// Writes each trace as a tree.
impl fmt::Display for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for root in self.0.iter().filter(|span| span.parent_span_id.is_empty()) {
            writeln!(f, "trace {}", root.trace_id)?;
            self.write_tree(f, root, 1)?;
        }
        Ok(())
    }
}

impl Collected {
    fn write_tree(&self, f: &mut fmt::Formatter<'_>, span: &ExportedSpan, depth: usize) -> fmt::Result {
        let kind = match span.kind {
            CLIENT => "client",
            PRODUCER => "producer",
            CONSUMER => "consumer",
            _ => "internal",
        };
        write!(f, "{:width$}{} ({kind})", "", span.name, width = 2 * depth)?;
        if let Some(partition) = span.attributes.get("messaging.destination.partition.id") {
            write!(f, ", partition {partition}")?;
        }
        for link in &span.links {
            write!(f, ", link to {}", link.span_id)?;
            if let Some(time) = link.attributes.get("messaging.eventhubs.message.enqueued_time") {
                write!(f, " (enqueued at {time})")?;
            }
        }
        writeln!(f, "  [{}]", span.span_id)?;
        for child in self.0.iter().filter(|child| child.parent_span_id == span.span_id) {
            self.write_tree(f, child, depth + 1)?;
        }
        Ok(())
    }
}
