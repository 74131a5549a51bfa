//! Named settings, and what counts more than they do.

use crate::fleet::Fleet;
use crate::program::Program;

#[tokio::test]
async fn a_profile_replaces_missing_settings() {
    let fleet = Fleet::with_batches(2, 0).await;
    let mut program = Program::for_fleet(&fleet).await;
    program.run(&["init", "--to-latest", "--execute"]).await.ended(0);
    let container = fleet.container_name.clone();
    let named = ["-n", "localhost", "-e", "orders", "-c", &container];
    program.run(&[&["profile", "add", "test"][..], &named].concat()).await.ended(0);
    program.run(&["profile", "add", "other", "-c", "other-container"]).await.ended(0);
    program.unset("EHCP_CONTAINER");
    program.unset("EVENTHUBS_CONNECTION_STRING");

    program.run(&["describe", "--no-hub"]).await.ended(64);
    program.run(&["describe", "--no-hub", "--profile", "test"]).await.ended(0);
    program.run(&["profile", "use", "test"]).await.ended(0);
    program.run(&["describe", "--no-hub"]).await.ended(0);
    // An option counts more than the environment, and that more than the profile.
    program.set("EHCP_CONTAINER", "other-container");
    program.run(&["describe", "--no-hub"]).await.ended(1);
    program.run(&["describe", "--no-hub", "-c", &container]).await.ended(0);

    let shown = program.run(&["profile", "list"]).await.ended(0).stdout;
    assert!(shown.lines().any(|line| line.starts_with('*') && line.contains("test")), "{shown}");
    program.run(&["profile", "remove", "test"]).await.ended(0);
    program.run(&["profile", "use", "test"]).await.ended(64);
}

#[tokio::test]
async fn a_profile_has_no_secrets() {
    let program = Program::bare();
    program.write("hub.txt", "Endpoint=sb://ns/;SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0;EntityPath=orders");
    let run = program.run(&["profile", "add", "x", "--hub-connection-string", "@hub.txt"]).await.ended(64);
    assert!(run.stderr.contains("no secrets"), "{}", run.stderr);
    program.run(&["profile", "add", "x", "-n", "ns"]).await.ended(0);
    let file = std::fs::read_to_string(program.folder().join("config/ehcp/config.toml")).unwrap();
    assert_eq!(file, "[profiles.x]\nnamespace = \"ns\"\n");
    program.write("config/ehcp/config.toml", "[profiles.x]\npassword = \"c2VjcmV0\"\n");
    let run = program.run(&["profile", "list"]).await.ended(64);
    assert!(run.stderr.contains("password") && !run.stderr.contains("c2VjcmV0"), "{}", run.stderr);
}
