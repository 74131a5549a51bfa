//! `ehcp serve` over HTTP.

use futures::StreamExt;
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::fleet::{Fleet, TIMEOUT};
use crate::program::Program;
use crate::server::Server;

/// A group of four partitions with ten events each, and checkpoints at the third event of two partitions.
async fn group() -> (Fleet, Program) {
    let mut fleet = Fleet::with_batches(4, 8).await;
    fleet.all_published().await;
    let program = Program::for_fleet(&fleet).await;
    program.run(&["init", "--to-sequence", "2", "-p", "0,1", "--execute"]).await.ended(0);
    (fleet, program)
}

/// Returns the values of a metric, in whole numbers, by the labels other than those of the group.
fn values(metrics: &str, name: &str) -> Vec<(String, i64)> {
    let of_group = r#"namespace="localhost",event_hub="orders",consumer_group="$Default""#;
    let lines =
        metrics.lines().filter_map(|line| line.strip_prefix(&format!("eventhubs_checkpoint_{name}{{{of_group}")));
    let mut values: Vec<_> = lines
        .map(|line| {
            let (labels, value) = line.split_once("} ").unwrap();
            (labels.trim_start_matches(',').to_owned(), value.split('.').next().unwrap().parse().unwrap())
        })
        .collect();
    values.sort();
    values
}

fn sum(metrics: &str, name: &str) -> i64 {
    values(metrics, name).into_iter().map(|(_, value)| value).sum()
}

#[tokio::test]
async fn metrics_show_partitions_without_owner() {
    let (_fleet, program) = group().await;
    let server = Server::start(&program, &[]).await;
    let metrics = server.wait_for("/metrics", |text| text.contains("_lag_events{")).await;
    let events = sum(&metrics, "last_enqueued_sequence_number") + 4;
    assert_eq!(events, 40, "{metrics}");
    assert_eq!(sum(&metrics, "lag_events"), events - 6, "{metrics}");
    let checkpoints = [(r#"partition="0""#.to_owned(), 2), (r#"partition="1""#.to_owned(), 2)];
    assert_eq!(values(&metrics, "checkpoint_sequence_number"), checkpoints);
    assert_eq!(values(&metrics, "group_partitions"), [(r#"state="unowned""#.to_owned(), 4)]);
    assert_eq!(sum(&metrics, "group_members") + sum(&metrics, "watcher_failures_total"), 0);
    assert!(sum(&metrics, "watcher_storage_requests_total") >= 2, "{metrics}");
    assert!(sum(&metrics, "watcher_last_refresh_timestamp_seconds") > 1_700_000_000, "{metrics}");
    for line in metrics.lines().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        let (_, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok() && line.contains(r#"{namespace="localhost""#), "{line}");
    }
    assert_eq!(server.stop().await, Some(0));
}

#[tokio::test]
async fn a_pause_is_a_metric_and_an_event() {
    let (_fleet, program) = group().await;
    program.run(&["pause", "-p", "0", "--reason", "a migration", "--execute"]).await.ended(0);
    let server = Server::start(&program, &[]).await;
    let metrics = server.wait_for("/metrics", |text| text.contains("_partition_paused{")).await;
    let paused = [(r#"partition="0",state="paused""#.to_owned(), 1)];
    assert_eq!(values(&metrics, "partition_paused"), paused);
    let group = server.json("/api/group").await;
    assert_eq!(group["partitions"][0]["checkpoint"]["paused"]["reason"], "a migration");
    assert_eq!(server.json("/api/groups").await["groups"][0]["paused"], 1);
    program.run(&["resume", "--execute"]).await.ended(0);
    server.wait_for("/metrics", |text| !text.contains("_partition_paused{")).await;
    let group = server.json("/api/group").await;
    let changes = group["changes"].as_array().unwrap();
    assert!(changes.iter().any(|change| change["kind"] == "resumed" && change["partition"] == "0"), "{changes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn series_of_what_is_gone_vanish() {
    let (fleet, program) = group().await;
    let server = Server::start(&program, &[]).await;
    let processor = fleet.own("a\"b").await;
    let owned = |text: &str| text.matches(r#"owner_id="a\"b""#).count();
    let metrics = server.wait_for("/metrics", |text| owned(text) == 4).await;
    assert_eq!(values(&metrics, "group_partitions"), [(r#"state="owned""#.to_owned(), 4)]);
    server.wait_for("/metrics", |text| values(text, "lag_events").len() == 4 && sum(text, "lag_events") == 0).await;
    processor.shut_down().await;
    let metrics = server.wait_for("/metrics", |text| owned(text) == 0).await;
    assert_eq!(values(&metrics, "owner_info"), []);
    assert_eq!(values(&metrics, "group_partitions"), [(r#"state="released""#.to_owned(), 4)]);
}

#[tokio::test]
async fn json_has_the_group_and_its_history() {
    let (_fleet, program) = group().await;
    let server = Server::start(&program, &[]).await;
    let name = "localhost/orders/$Default";
    let text = server.wait_for("/api/group", |text| text.contains("\"last\":")).await;
    let group: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&group["schema"], &group["name"]), (&json!("ehcp.watch/1"), &json!(name)));
    let described = program.json(&["describe"]).await;
    assert_eq!((&group["group"], &group["partitions"]), (&described["group"], &described["partitions"]));
    assert_eq!(group["history"]["0"][0]["state"], "unowned");
    assert_eq!(group["spans"]["3"][0]["owner"], Value::Null);
    assert_eq!(group["watching"]["storage_failure"], Value::Null);
    assert_eq!(server.json(&format!("/api/group?name={name}")).await["name"], name);
    let groups = server.json("/api/groups").await;
    assert_eq!(groups["schema"], "ehcp.watched-groups/1");
    assert_eq!((&groups["groups"][0]["name"], &groups["groups"][0]["partitions"]), (&json!(name), &json!(4)));

    let unknown = server.get("/api/group?name=x/y/z").await;
    assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
    assert!(unknown.text().await.unwrap().contains("/api/groups"));
    for path in ["/", "/api/group", "/api/groups", "/metrics", "/healthz", "/api/group?name=x"] {
        let response = server.text(path).await.to_lowercase();
        assert!(!response.contains("sharedaccess") && !response.contains("accountkey"), "{path}");
    }
}

#[tokio::test]
async fn a_change_reaches_the_stream_of_events() {
    let (_fleet, program) = group().await;
    let server = Server::start(&program, &[]).await;
    server.wait_for("/api/group", |text| text.contains("\"last\":")).await;
    let stream = server.get("/api/events?name=localhost/orders/$Default").await;
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    program.run(&["reset", "--to-sequence", "7", "-p", "1", "--execute"]).await.ended(0);
    let (mut stream, mut text) = (stream.bytes_stream(), String::new());
    let found = async {
        loop {
            text += std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap();
            let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            let looks = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
            let mut changes = looks.flat_map(|look| look["changes"].as_array().cloned().unwrap_or_default());
            if let Some(reset) = changes.find(|change| change["kind"] == "reset") {
                return reset;
            }
        }
    };
    let reset = timeout(TIMEOUT, found).await.unwrap();
    assert_eq!((&reset["partition"], &reset["checkpoints"]), (&json!("1"), &json!([2, 7])));
    assert!(text.starts_with("event: groups\n"), "{text}");
    // Streams do not delay the end.
    assert_eq!(server.stop().await, Some(0));
}

#[tokio::test]
async fn health_reports_a_storage_without_response() {
    let (_fleet, mut program) = group().await;
    let server = Server::start(&program, &[]).await;
    server.wait_for("/healthz", |text| text == "ok\n").await;
    program.set("EHCP_CONTAINER", "missing");
    let broken = Server::start(&program, &[]).await;
    let text = broken.wait_for("/healthz", |text| text.contains("missing")).await;
    assert!(text.starts_with("localhost/orders/$Default: no look for "), "{text}");
    assert_eq!(broken.get("/healthz").await.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(broken.json("/api/group").await["watching"]["storage_failure"].as_str().unwrap().contains("--container"));
}

#[tokio::test]
async fn a_missing_event_hub_does_not_end_the_watch() {
    let (fleet, program) = group().await;
    let without_key = fleet.hub.connection_string_with_port().replace("SharedAccessKey=", "SharedAccessKey=d3Jvbmc");
    program.write("hub.txt", &without_key);
    let server = Server::start(&program, &[]).await;
    let text = server.wait_for("/api/group", |text| text.contains("\"hub_failure\":\"")).await;
    let group: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(group["partitions"].as_array().map(Vec::len), Some(2), "those with a record: {text}");
    assert_eq!(server.text("/healthz").await, "ok\n");
    assert!(!text.contains("d3Jvbmc"), "{text}");
}

/// As docs/ehcp.md says.
#[tokio::test]
async fn a_look_costs_two_storage_requests() {
    let (_fleet, program) = group().await;
    let server = Server::start(&program, &[]).await;
    let cost = |text: &str| {
        let group: Value = serde_json::from_str(text).unwrap();
        let watching = &group["watching"];
        (watching["looks"].as_u64().unwrap(), watching["storage_requests"].as_u64().unwrap())
    };
    let (looks, requests) = cost(&server.wait_for("/api/group", |text| cost(text).0 >= 2).await);
    let (later, more) = cost(&server.wait_for("/api/group", |text| cost(text).0 >= looks + 4).await);
    assert_eq!(more - requests, 2 * (later - looks));
}

#[tokio::test]
async fn all_groups_of_a_container_are_found() {
    let (_fleet, program) = group().await;
    program.run(&["init", "--to-earliest", "-g", "billing", "--execute"]).await.ended(0);
    let server = Server::start(&program, &["--all"]).await;
    let two = |text: &str| text.matches("\"partitions\":4").count() == 2;
    let text = server.wait_for("/api/groups", two).await;
    assert!(text.contains("localhost/orders/billing") && text.contains("localhost/orders/$default"), "{text}");
    server.stop().await;
    let server = Server::start(&program, &["--group", "billing", "--group", "$Default"]).await;
    let text = server.wait_for("/api/groups", two).await;
    assert!(text.contains("localhost/orders/billing") && text.contains("localhost/orders/$Default"), "{text}");
}

#[tokio::test]
async fn only_reads_of_this_machine_are_served() {
    let (_fleet, program) = group().await;
    let server = Server::start(&program, &[]).await;
    for (host, status) in [("localhost:1", 200), ("127.0.0.1", 200), ("evil.example", 421), ("10.0.0.1:80", 421)] {
        assert_eq!(server.get_as(host, "/api/groups").await, status, "{host}");
    }
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS] {
        let response = Client::new().request(method, server.of("/api/group")).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    }
    assert_eq!(server.get("/nothing").await.status(), StatusCode::NOT_FOUND);
    assert_eq!(Client::new().head(server.of("/")).send().await.unwrap().status(), StatusCode::OK);
    for path in ["/", "/api/group", "/metrics", "/nothing"] {
        let headers = server.get(path).await.headers().clone();
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'sha256-") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(
            (&headers["x-content-type-options"], &headers["referrer-policy"]),
            (&"nosniff".parse().unwrap(), &"no-referrer".parse().unwrap())
        );
        assert!(!headers.contains_key("access-control-allow-origin"));
    }
}

#[tokio::test]
async fn an_address_for_others_is_warned_of() {
    let (_fleet, program) = group().await;
    let server = Server::start_on("0.0.0.0:0", &program, &["--no-hub"]).await;
    assert!(server.notes[0].starts_with("warning: there is no authentication"), "{:?}", server.notes);
    // Other machines know it under other names.
    assert_eq!(server.get_as("ehcp.example", "/api/groups").await, 200);
    let text = server.wait_for("/api/group", |text| text.contains("\"taken_at\":")).await;
    let group: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&group["watching"]["hub_failure"], &group["group"]["lag"]["state"]), (&Value::Null, &json!("unknown")));
}

#[tokio::test]
async fn wrong_options_are_refused() {
    let (_fleet, program) = group().await;
    let run = program.run(&["serve", "--interval", "5ms"]).await.ended(64);
    assert!(run.stderr.contains("'5ms'") && run.stderr.contains("at least 100ms"), "{}", run.stderr);
    program.run(&["serve", "--all", "--group", "billing"]).await.ended(64);
    let run = Program::bare().run(&["serve", "--all"]).await.ended(64);
    assert!(run.stderr.contains("--account"), "{}", run.stderr);
    let server = Server::start(&program, &[]).await;
    assert_eq!(server.notes, [""; 0], "loopback needs no warning");
    let address = server.url.strip_prefix("http://").unwrap();
    let run = program.run(&["serve", "--listen", address]).await.ended(1);
    assert!(
        run.stderr.contains(&format!("cannot listen on {address}")) && run.stderr.contains("--listen"),
        "{}",
        run.stderr
    );
}

/// The checkpoints are after the end, so the lag is no measure.
#[tokio::test]
async fn a_recreated_event_hub_has_no_lag() {
    let (_fleet, program) = group().await;
    program.write("beyond.csv", "partition,sequence_number,offset\n0,5000,50000\n");
    let beyond = ["import", "--from", "beyond.csv", "--overwrite", "--unclamped", "--execute"];
    program.run(&beyond).await.ended(0);
    let server = Server::start(&program, &[]).await;
    server.wait_for("/api/group", |text| text.contains("\"is_beyond_end\":true")).await;
    let metrics = server.text("/metrics").await;
    let partitions: Vec<_> = values(&metrics, "lag_events").into_iter().map(|(labels, _)| labels).collect();
    assert_eq!(partitions, [1, 2, 3].map(|id| format!("partition=\"{id}\"")));
}
