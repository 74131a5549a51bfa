//! No credential appears in anything that the program writes, with all possible logging.

use std::fs;

use eventhubs_emulator::DEFAULT_KEY;

use crate::fleet::Fleet;
use crate::program::Program;
use crate::server::Server;
use crate::support::azurite::ACCOUNT_KEY;

/// Logs of every crate, at every level.
const LOGGED: &str = "-vvvv";

/// The keys, and what follows from them: signatures of requests and of tokens.
fn assert_no_secret(text: &str, source: &str) {
    for secret in [ACCOUNT_KEY, DEFAULT_KEY, "SharedKey devstoreaccount1:", "sig=", "SharedAccessSignature sr="] {
        let Some(at) = text.find(secret) else { continue };
        let shown: String = text[at.saturating_sub(200)..].chars().take(300).collect();
        panic!("{source}: {secret} in {shown}");
    }
}

async fn group() -> (Fleet, Program) {
    let mut fleet = Fleet::with_batches(2, 4).await;
    fleet.all_published().await;
    let program = Program::for_fleet(&fleet).await;
    program.run(&["init", "--to-sequence", "2", "--execute"]).await.ended(0);
    (fleet, program)
}

#[tokio::test]
async fn commands_write_no_secret() {
    let (_fleet, program) = group().await;
    for line in [
        &["list"][..],
        &["describe", "-o", "json"],
        &["lag"],
        &["check"],
        &["doctor", "--write-probe"],
        &["keda"],
        &["peek", "-p", "0", "--at", "1", "--count", "1"],
        &["watch", "--count", "2", "--interval", "100ms", "--refresh", "100ms"],
        &["export"],
        &["reset", "--to-earliest"],
        &["reset", "--to-earliest", "--execute"],
        &["delete", "--checkpoints", "--execute"],
        &["release", "-p", "0", "--execute"],
        &["copy", "--to-group", "replay", "--execute"],
        &["profile", "add", "p", "-e", "orders"],
    ] {
        let run = program.run(&[&[LOGGED], line].concat()).await;
        assert!(run.stderr.contains(" TRACE ") || line[0] == "profile", "{line:?} logs: {}", run.stderr);
        assert_no_secret(&run.stdout, &format!("{line:?}"));
        assert_no_secret(&run.stderr, &format!("the log of {line:?}"));
    }
    for backup in program.backups() {
        assert_no_secret(&fs::read_to_string(&backup).unwrap(), &backup.display().to_string());
    }
}

#[tokio::test]
async fn refused_credentials_are_not_shown() {
    let (fleet, mut program) = group().await;
    let wrong = fleet.hub.connection_string_with_port().replace(DEFAULT_KEY, "d3Jvbmcgc2VjcmV0IGtleQ==");
    program.write("hub.txt", &wrong);
    let refused_hub = program.run(&[LOGGED, "lag"]).await.ended(1);
    program.write("storage.txt", "AccountName=devstoreaccount1;AccountKey=d3Jvbmcgc2VjcmV0IGtleQ==;");
    program.set("EHCP_ACCOUNT", "devstoreaccount1");
    let refused_storage = program.run(&[LOGGED, "describe", "--no-hub"]).await.ended(1);
    for run in [refused_hub, refused_storage] {
        assert!(!format!("{run:?}").contains("d3Jvbmcgc2VjcmV0IGtleQ"), "{run:?}");
    }
}

#[tokio::test]
async fn pages_show_no_secret() {
    let (_fleet, program) = group().await;
    let server = Server::start(&program, &[]).await;
    server.wait_for("/metrics", |text| text.contains("_lag_events{")).await;
    let name = "localhost/orders/$Default";
    for path in ["/", "/metrics", "/api/groups", &format!("/api/group?name={name}"), "/healthz"] {
        assert_no_secret(&server.text(path).await, path);
    }
    assert_eq!(server.stop().await, Some(0));
}
