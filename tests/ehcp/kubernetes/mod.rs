//! The manifests in `docs/kubernetes.md` are valid for Kubernetes and for KEDA.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::python::{check_python, python_with_packages};
use crate::support::repository;

const PAGE: &str = "docs/kubernetes.md";

/// Returns the YAML on the page.
fn manifests() -> String {
    let page = fs::read_to_string(repository::root().join(PAGE)).unwrap();
    let blocks: Vec<_> = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    blocks.join("---\n")
}

/// Returns whether the schemas can be installed. If not, it prints the reason once, although tests are silent when they
/// pass.
fn is_here() -> bool {
    static HERE: OnceLock<bool> = OnceLock::new();
    *HERE.get_or_init(|| {
        check_python().map_err(|why| writeln!(std::io::stderr(), "schemas of Kubernetes are skipped: {why}")).is_ok()
    })
}

/// Returns the kinds and names of the manifests in each text, or the first error in it.
fn validated(texts: &[String]) -> Vec<Result<Vec<String>, String>> {
    let folder = repository::root().join("tests/ehcp/kubernetes");
    let mut python = Command::new(python_with_packages(&folder).unwrap());
    python.arg("validate.py").current_dir(&folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.spawn().unwrap();
    serde_json::to_writer(python.stdin.take().unwrap(), texts).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    let results: Vec<BTreeMap<String, Value>> = serde_json::from_slice(&output.stdout).unwrap();
    let result = |result: BTreeMap<String, Value>| match (result.get("Ok"), result.get("Err")) {
        (Some(names), None) => Ok(serde_json::from_value(names.clone()).unwrap()),
        (_, error) => Err(error.and_then(Value::as_str).unwrap().to_owned()),
    };
    results.into_iter().map(result).collect()
}

#[test]
fn the_manifests_of_the_page_are_valid() {
    if !is_here() {
        return;
    }
    let kinds = [
        "ServiceAccount",
        "Deployment",
        "PodDisruptionBudget",
        "Service",
        "StatefulSet",
        "TriggerAuthentication",
        "ScaledObject",
        "NetworkPolicy",
    ];
    assert_eq!(validated(&[manifests()]), [Ok(kinds.map(|kind| format!("{kind}/orders")).to_vec())]);
}

#[test]
fn a_wrong_manifest_is_rejected() {
    if !is_here() {
        return;
    }
    let page = manifests();
    let cases = [
        ("maxUnavailable: 1\n  unhealthy", "maxUnavailabel: 1\n  unhealthy", "maxUnavailabel"),
        ("minReadySeconds: 60", "minReadySeconds: \"60\"", "'60'"),
        ("httpGet: { path: /ready, port: http }", "httpGet: { path: /ready }", "'port'"),
        ("policyTypes:", "policyType:", "policyType"),
        ("  selector:\n    matchLabels: { app: orders }\n  strategy", "  strategy", "'selector'"),
        ("provider: azure-workload", "provider: workload", "'workload'"),
        ("maxReplicaCount: 8", "maxReplicas: 8", "maxReplicas"),
        ("maxReplicaCount: 8", "maxReplicaCount: many", "'many'"),
        ("maxReplicaCount: 8", "maxReplicaCount:", "None"),
        ("periodSeconds: 120", "period: 120", "period"),
        ("unprocessedEventThreshold: \"1000\"", "unprocessedEventThreshold: 1000", "1000"),
        ("eventHubName:", "eventhubName:", "eventhubName"),
        ("blobContainer: \"checkpoints\"", "", "blobContainer"),
    ];
    let texts = cases.map(|(right, wrong, _)| {
        assert!(page.contains(right), "{right}");
        page.replacen(right, wrong, 1)
    });
    for ((_, wrong, named), rejected) in cases.into_iter().zip(validated(&texts)) {
        assert!(rejected.as_ref().is_err_and(|error| error.contains(named)), "{wrong}: {rejected:?}");
    }
}
