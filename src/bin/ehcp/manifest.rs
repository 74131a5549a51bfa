//! The configuration of KEDA as YAML: pure.

use serde_json::Value;

use crate::exit::{Failure, Result};

/// The domains of Event Hubs, and the names that KEDA has for their clouds. The first one is its default.
const CLOUDS: &[(&str, Option<&str>)] = &[
    ("servicebus.windows.net", None),
    ("servicebus.usgovcloudapi.net", Some("AzureUSGovernmentCloud")),
    ("servicebus.chinacloudapi.cn", Some("AzureChinaCloud")),
];

/// What is written.
#[derive(Clone, Debug)]
pub struct Manifest<'a> {
    /// The fully qualified namespace, in the letter case of the blobs.
    pub namespace: &'a str,
    /// The event hub, in the letter case of the blobs.
    pub event_hub: &'a str,
    pub consumer_group: &'a str,
    pub account: &'a str,
    pub container: &'a str,
    /// `Deployment` or `StatefulSet`.
    pub kind: &'static str,
    /// The name of the workload, and of the objects that are written.
    pub workload: &'a str,
    pub threshold: i64,
    pub max_replicas: u64,
}

impl Manifest<'_> {
    /// Returns a TriggerAuthentication and a ScaledObject.
    pub fn yaml(&self) -> Result<String> {
        Ok(format!("{}---\n{}{}", self.authentication(), self.scaled_object(), self.trigger()?))
    }

    fn authentication(&self) -> String {
        let workload = yaml(self.workload);
        format!(
            "\
apiVersion: keda.sh/v1alpha1
kind: TriggerAuthentication
metadata:
  name: {workload}
spec:
  podIdentity:
    # KEDA's own identity, or the one of identityId: Azure Event Hubs Data Receiver, Storage Blob Data Reader.
    provider: azure-workload
"
        )
    }

    /// Returns the ScaledObject up to the settings of its trigger.
    fn scaled_object(&self) -> String {
        let Self { kind, max_replicas, .. } = self;
        let workload = yaml(self.workload);
        let fallback = 2.min(*max_replicas);
        format!(
            "\
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {workload}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: {kind}
    name: {workload}
  # 1, if the time to start matters.
  minReplicaCount: 0
  # More than one per partition are idle.
  maxReplicaCount: {max_replicas}
  pollingInterval: 30
  # Before the last replica ends.
  cooldownPeriod: 300
  # If the event hub or a checkpoint cannot be read.
  fallback:
    failureThreshold: 3
    replicas: {fallback}
  advanced:
    horizontalPodAutoscalerConfig:
      # Each change moves partitions: up at once, down late and one by one.
      behavior:
        scaleUp:
          stabilizationWindowSeconds: 0
          policies:
            - type: Percent
              value: 400
              periodSeconds: 30
        scaleDown:
          stabilizationWindowSeconds: 300
          policies:
            - type: Pods
              value: 1
              periodSeconds: 120
  triggers:
    - type: azure-eventhub
      authenticationRef:
        name: {workload}
      metadata:
"
        )
    }

    /// Returns the settings of the scaler, one per line. All of them are texts.
    fn trigger(&self) -> Result<String> {
        let (short, suffix) = self.namespace.split_once('.').ok_or_else(|| {
            let namespace = self.namespace;
            Failure::usage(format!(
                "KEDA cannot read from namespace {namespace:?}: pass --namespace NAME or --namespace NAME.{}",
                CLOUDS[0].0
            ))
        })?;
        let cloud = CLOUDS.iter().find(|(domain, _)| domain.eq_ignore_ascii_case(suffix));
        let (cloud, suffix) = match cloud {
            Some((_, cloud)) => (*cloud, None),
            None => (Some("Private"), Some(suffix)),
        };
        let threshold = self.threshold.to_string();
        let settings = [
            ("checkpointStrategy", Some("blobMetadata")),
            ("cloud", cloud),
            ("endpointSuffix", suffix),
            // KEDA uses it only for a private cloud.
            ("storageEndpointSuffix", suffix.map(|_| "core.windows.net")),
            ("eventHubNamespace", Some(short)),
            ("eventHubName", Some(self.event_hub)),
            ("consumerGroup", Some(self.consumer_group)),
            ("storageAccountName", Some(self.account)),
            ("blobContainer", Some(self.container)),
            ("unprocessedEventThreshold", Some(threshold.as_str())),
            ("activationUnprocessedEventThreshold", Some("0")),
        ];
        let lines = settings.into_iter().filter_map(|(name, value)| {
            // A text of JSON is one of YAML.
            Some(format!("        {name}: {}\n", Value::from(value?)))
        });
        Ok(lines.collect())
    }
}

/// Returns a name as text of YAML, which reads some words as other types.
fn yaml(name: &str) -> String {
    let is_word = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"].contains(&name);
    let is_plain = name.starts_with(|letter: char| letter.is_ascii_lowercase()) && !is_word;
    if is_plain { name.to_owned() } else { format!("{name:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: Manifest<'_> = Manifest {
        namespace: "my-namespace.servicebus.windows.net",
        event_hub: "orders",
        consumer_group: "$Default",
        account: "mystorage",
        container: "checkpoints",
        kind: "Deployment",
        workload: "orders",
        threshold: 1000,
        max_replicas: 8,
    };

    fn metadata(manifest: &Manifest<'_>) -> Vec<(String, String)> {
        let yaml = manifest.yaml().unwrap();
        let lines = yaml.split_once("      metadata:\n").unwrap().1.lines();
        let pairs = lines.map(|line| line.trim().split_once(": ").unwrap());
        pairs.map(|(name, value)| (name.to_owned(), serde_json::from_str(value).unwrap())).collect()
    }

    fn setting(manifest: &Manifest<'_>, name: &str) -> Option<String> {
        metadata(manifest).into_iter().find(|(found, _)| found == name).map(|(_, value)| value)
    }

    #[test]
    fn the_namespace_is_a_short_name_and_a_cloud() {
        for (namespace, short, cloud, suffix) in [
            ("ns.servicebus.windows.net", "ns", None, None),
            ("ns.servicebus.chinacloudapi.cn", "ns", Some("AzureChinaCloud"), None),
            ("ns.servicebus.usgovcloudapi.net", "ns", Some("AzureUSGovernmentCloud"), None),
            ("ns.eventhub.example.com", "ns", Some("Private"), Some("eventhub.example.com")),
        ] {
            let manifest = Manifest { namespace, ..MANIFEST };
            assert_eq!(setting(&manifest, "eventHubNamespace").as_deref(), Some(short), "{namespace}");
            assert_eq!(setting(&manifest, "cloud").as_deref(), cloud, "{namespace}");
            assert_eq!(setting(&manifest, "endpointSuffix").as_deref(), suffix, "{namespace}");
        }
        let refused = Manifest { namespace: "localhost", ..MANIFEST }.yaml().unwrap_err().to_string();
        assert!(refused.contains("\"localhost\"") && refused.contains("--namespace"), "{refused}");
    }

    #[test]
    fn every_setting_is_a_text() {
        let manifest = Manifest { event_hub: "a: \"b\" #", consumer_group: "true", ..MANIFEST };
        assert_eq!(setting(&manifest, "eventHubName").as_deref(), Some("a: \"b\" #"));
        assert_eq!(setting(&manifest, "consumerGroup").as_deref(), Some("true"));
        assert_eq!(setting(&manifest, "unprocessedEventThreshold").as_deref(), Some("1000"));
    }

    #[test]
    fn the_fallback_is_not_above_the_maximum() {
        let yaml = Manifest { max_replicas: 1, ..MANIFEST }.yaml().unwrap();
        assert!(yaml.contains("    replicas: 1\n") && yaml.contains("maxReplicaCount: 1\n"), "{yaml}");
    }

    #[test]
    fn names_are_texts() {
        for (name, expected) in [("orders", "orders"), ("null", "\"null\""), ("123", "\"123\""), ("0x1f", "\"0x1f\"")] {
            assert_eq!(yaml(name), expected);
        }
    }
}
