//! Every exit code, and the message with it.

use serde_json::json;

use crate::fleet::Fleet;
use crate::program::Program;
use crate::undo::write;

const SECRET: &str = "c2VjcmV0c2VjcmV0";

#[tokio::test]
async fn a_wrong_command_line_ends_with_64() {
    let mut program = Program::bare();
    program.write("storage.txt", "AccountName=a;AccountKey=a2V5");
    program.set("AZURE_STORAGE_CONNECTION_STRING", "@storage.txt");
    let key = format!("Endpoint=sb://ns/;SharedAccessKeyName=n;SharedAccessKey={SECRET}");
    let named = ["-c", "c", "-n", "ns", "-e", "orders"];
    for (arguments, message) in [
        (&["describe"][..], "pass --namespace"),
        (&["describe", "-c", "c"], "pass --namespace"),
        (&["describe", "-c", "c", "-n", "ns"], "pass --event-hub"),
        (&["describe", "-c", "c", "--hub-connection-string", &key], "as @FILE"),
        (&["describe", "-c", "c", "--hub-connection-string", "@absent.txt"], "cannot read absent.txt"),
        (&["describe", "-c", "c", "--profile", "absent"], "there is no profile \"absent\""),
        (&["describe", "-c", "UPPER", "-n", "ns", "-e", "h"], "container name"),
        (&["reset"], "required"),
        (&["reset", "--to-earliest", "--to-latest"], "cannot be used with"),
        (&["reset", "--to-earliest", "-p", "5-3"], "not a range"),
        (&["reset", "--to-datetime", "yesterday"], "2026-11-23T10:00:00Z"),
        (&["reset", "--to-earliest", "--force"], "--live"),
        (&["delete", "--execute"], "required"),
        (&["lag", "--no-hub"], "remove --no-hub"),
        (&["describe", "-p", "0", "--members"], "cannot be used with"),
        (&["describe", "-p", "0", "--state"], "cannot be used with"),
        (&["list", "--state", "asleep"], "is no state"),
        (&["keda", "--no-hub"], "remove --no-hub"),
        (&["doctor", "--only", "everything"], "is no check"),
        (&["doctor", "--no-hub", "--only", "checkpoint-of-former-hub"], "needs the event hub"),
        (&["import", "--from", "absent.json"], "cannot read absent.json"),
        (&["nonsense"], "unrecognized"),
        (&["describe", "-g", "check", "--typo"], "unexpected argument"),
    ] {
        let is_complete = ["lag", "keda", "list", "doctor", "import"].contains(&arguments[0]);
        let arguments = if is_complete { [arguments, &named].concat() } else { arguments.to_vec() };
        let run = program.run(&arguments).await.ended(64);
        assert!(run.stderr.contains(message), "{arguments:?}: {}", run.stderr);
        assert!(!run.stderr.contains(SECRET), "{arguments:?}: {}", run.stderr);
    }
    for (secret, message) in
        [(key.as_str(), "names no event hub: pass --event-hub"), (SECRET, "the connection string has no Endpoint")]
    {
        program.set("EVENTHUBS_CONNECTION_STRING", secret);
        let run = program.run(&["describe"]).await.ended(64);
        assert!(run.stderr.contains(message) && !run.stderr.contains(SECRET), "{}", run.stderr);
    }
    assert_eq!(program.run(&["--version"]).await.ended(0).stdout, concat!("ehcp ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[tokio::test]
async fn what_azure_refuses_ends_with_1() {
    let fleet = Fleet::with_batches(2, 0).await;
    let mut program = Program::for_fleet(&fleet).await;
    let run = program.run(&["describe"]).await.ended(1);
    assert!(run.stderr.contains("no records of localhost/orders/$Default"), "{}", run.stderr);
    let run = program.run(&["describe", "-c", "absent"]).await.ended(1);
    assert!(run.stderr.contains("--container"), "{}", run.stderr);
    let run = program.run(&["doctor", "-c", "absent", "--no-hub"]).await.ended(2);
    assert!(run.stdout.contains("create the container, or check --container"), "{}", run.stdout);
    program.set("EVENTHUBS_CONNECTION_STRING", &fleet.hub.connection_string_with_port().replace("orders", "absent"));
    program.run(&["init", "--to-latest"]).await.ended(1);
    // Nothing listens there.
    let unreachable = format!("AccountName=a;AccountKey={SECRET};BlobEndpoint=http://127.0.0.1:9/a");
    program.set("AZURE_STORAGE_CONNECTION_STRING", &unreachable);
    let run = program.run(&["describe", "--timeout", "1s", "-v"]).await.ended(1);
    assert!(!run.stderr.contains(SECRET), "{}", run.stderr);
}

#[tokio::test]
async fn differences_end_with_2() {
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let program = Program::for_fleet(&fleet).await;
    write(&fleet, "$default/ownership/0", &[("ownerid", "")]).await;
    for execute in [&[][..], &["--execute"]] {
        let run = program.run(&[&["init", "--to-latest", "--no-hub"], execute].concat()).await.ended(1);
        assert!(!run.stderr.contains("nothing to do"), "{}", run.stderr);
    }
    let run = program.run(&["init", "--to-earliest"]).await.ended(2);
    assert!(run.stderr.contains("dry run: would create 2 checkpoints; add --execute"), "{}", run.stderr);
    program.run(&["init", "--to-earliest", "--execute"]).await.ended(0);
    let run = program.run(&["init", "--to-earliest", "--execute"]).await.ended(0);
    assert!(run.stderr.contains("nothing to do"), "{}", run.stderr);
    assert_eq!(program.run(&["lag", "--sum"]).await.ended(0).stdout, "40\n");
    program.run(&["lag", "--max", "40"]).await.ended(0);
    program.run(&["lag", "--max", "39"]).await.ended(2);
    program.run(&["reset", "--to-sequence", "4"]).await.ended(2);
    program.run(&["reset", "--to-sequence", "4", "--execute"]).await.ended(0);
    for execute in [&[][..], &["--execute"]] {
        let run = program.run(&[&["reset", "--to-sequence", "4"], execute].concat()).await.ended(0);
        assert!(run.stderr.contains("nothing to do"), "{}", run.stderr);
        let run = program.run(&[&["reset", "--to-latest", "--no-hub"], execute].concat()).await.ended(1);
        assert!(!run.stderr.contains("nothing to do"), "{}", run.stderr);
    }
    let run = program.run(&["doctor"]).await.ended(2);
    assert!(run.stdout.contains("no-members"), "{}", run.stdout);
    program.run(&["doctor", "--only", "hub", "--only", "storage"]).await.ended(0);
    program.run(&["doctor", "--write-probe", "--only", "storage-write"]).await.ended(0);
}

#[tokio::test]
async fn check_ends_as_a_plugin_of_nagios() {
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let program = Program::for_fleet(&fleet).await;
    let run = program.run(&["check"]).await.ended(3);
    assert!(run.stdout.starts_with("EHCP UNKNOWN - "), "{}", run.stdout);
    let a = fleet.own("a").await;
    fleet.all_processed().await;
    let run = program.run(&["check", "--lag-crit", "10", "--updated-within", "10m"]).await.ended(0);
    assert_eq!(
        run.stdout,
        "EHCP OK - every partition has a live owner | lag=0;;10 lag_age=0s owners=1 unowned=0 paused=0 parked=0\n"
    );
    program.run(&["reset", "--to-sequence", "9", "--live", "--execute"]).await.ended(0);
    a.shut_down().await;
    let run = program.run(&["check"]).await.ended(2);
    assert!(run.stdout.starts_with("EHCP CRITICAL - without a live owner: 0-1 | lag="), "{}", run.stdout);
    program.run(&["reset", "--to-sequence", "9", "--execute"]).await;
    let thresholds = ["check", "--unowned-for", "1h", "--lag-warn", "15", "--lag-crit", "100"];
    let run = program.run(&thresholds).await.ended(1);
    assert!(run.stdout.starts_with("EHCP WARNING - lag 20 is more than 15 | lag=20;15;100 lag_age="), "{run:?}");
    assert!(run.stdout.ends_with("s owners=0 unowned=2 paused=0 parked=0\n"), "{run:?}");
    let report = program.json(&thresholds).await;
    assert_eq!((&report["state"], &report["lag"]), (&json!("warning"), &json!(20)));
}
