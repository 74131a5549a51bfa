//! A recorder that keeps all values.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use eventhubs_checkpoint::metrics::Metric;
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

const PREFIX: &str = "eventhubs_checkpoint_";

/// The values of each series, by name and by labels as `a=1,b=2` in order, without the labels that all series have.
#[derive(Default)]
pub struct RecordedMetrics {
    counters: Mutex<BTreeMap<(String, String), Arc<AtomicU64>>>,
    gauges: Mutex<BTreeMap<(String, String), Arc<AtomicU64>>>,
    histograms: Mutex<BTreeMap<(String, String), Arc<Values>>>,
    described: Mutex<BTreeMap<String, String>>,
}

#[derive(Default)]
struct Values(Mutex<Vec<f64>>);

impl HistogramFn for Values {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

impl RecordedMetrics {
    #[expect(clippy::cast_precision_loss, reason = "the counts are small")]
    fn all(&self) -> BTreeMap<(String, String), f64> {
        let counters = self.counters.lock().unwrap();
        let counters = counters.iter().map(|(key, value)| (key.clone(), value.load(Ordering::Relaxed) as f64));
        let gauges = self.gauges.lock().unwrap();
        let gauges = gauges.iter().map(|(key, value)| (key.clone(), f64::from_bits(value.load(Ordering::Relaxed))));
        counters.chain(gauges).collect()
    }

    /// Returns 0 if the series does not exist.
    pub fn get(&self, name: &str, labels: &str) -> f64 {
        let key = (format!("{PREFIX}{name}"), labels.to_owned());
        self.all().get(&key).copied().unwrap_or_default()
    }

    /// Returns the sum over all labels.
    pub fn sum(&self, name: &str) -> f64 {
        let name = format!("{PREFIX}{name}");
        self.all().iter().filter(|((known, _), _)| *known == name).map(|(_, value)| value).sum()
    }

    pub fn values(&self, name: &str) -> Vec<f64> {
        let key = (format!("{PREFIX}{name}"), String::new());
        self.histograms.lock().unwrap().get(&key).map(|values| values.0.lock().unwrap().clone()).unwrap_or_default()
    }

    pub fn count(&self, name: &str) -> usize {
        self.values(name).len()
    }

    /// Checks that exactly these metrics were described, and that every series belongs to one of them and has its
    /// labels.
    pub fn assert_described(&self, metrics: &[Metric]) {
        let described = self.described.lock().unwrap();
        let expected = metrics.iter().map(|metric| {
            (metric.name.to_owned(), format!("{:?} {:?} {}", metric.kind, metric.unit, metric.description))
        });
        assert_eq!(*described, expected.collect());
        let histograms: Vec<_> = self.histograms.lock().unwrap().keys().cloned().collect();
        for (name, labels) in self.all().into_keys().chain(histograms) {
            let metric = metrics.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("{name}"));
            let mut expected = metric.labels.to_vec();
            expected.sort_unstable();
            let labels = labels.split(',').filter(|label| !label.is_empty());
            let labels: Vec<_> = labels.map(|label| label.split('=').next().unwrap()).collect();
            assert_eq!(labels, expected, "{name}");
        }
    }

    fn describe(&self, kind: &str, name: &KeyName, unit: Option<Unit>, description: &str) {
        let text = format!("{kind} {:?} {description}", unit.unwrap());
        self.described.lock().unwrap().insert(name.as_str().to_owned(), text);
    }
}

fn series(key: &Key) -> (String, String) {
    let mut labels: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
    labels.sort_unstable();
    for (name, expected) in [("consumer_group", Some("$default")), ("event_hub", Some("hub")), ("namespace", None)] {
        let is_expected = |value: &str| expected.is_none_or(|expected| value.to_lowercase() == expected);
        let place = labels.iter().position(|label| label.0 == name && is_expected(label.1));
        labels.remove(place.unwrap_or_else(|| panic!("{name} is not there: {key}")));
    }
    let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    (key.name().to_owned(), labels.join(","))
}

impl Recorder for RecordedMetrics {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe("Counter", &key, unit, &description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe("Gauge", &key, unit, &description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe("Histogram", &key, unit, &description);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.counters.lock().unwrap().entry(series(key)).or_default().clone())
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.gauges.lock().unwrap().entry(series(key)).or_default().clone())
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.histograms.lock().unwrap().entry(series(key)).or_default().clone())
    }
}
