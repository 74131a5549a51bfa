//! The help of every command is as the snapshots show it. `SNAPSHOTS=overwrite` writes them again.

use snapbox::Data;

use crate::program::Program;
use crate::support::repository;

async fn help(command: &[&str]) -> String {
    Program::bare().run(&[command, &["--help"]].concat()).await.ended(0).stdout
}

/// Compares the help without the options that all commands share, which the help of the program shows.
#[tokio::test]
async fn every_command_shows_its_help() {
    let all = help(&[]).await;
    let listed = all.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // A line that is continued begins with more spaces.
    let names = listed.filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')));
    let commands: Vec<_> = names.map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(commands.len() > 15, "{commands:?}");
    compare("ehcp", all.clone());
    for command in commands.into_iter().filter(|command| *command != "help") {
        let shown = help(&[command]).await;
        let (own, shared) = shown.split_once("\nConnection:\n").unwrap();
        let examples = shared.split_once("\nExamples:\n").unwrap_or_else(|| panic!("{command} has no examples")).1;
        compare(command, format!("{own}\nExamples:\n{examples}"));
    }
}

#[track_caller]
fn compare(name: &str, shown: String) {
    let folder = repository::root().join("tests/ehcp/snapshots");
    snapbox::assert_data_eq!(shown, Data::read_from(&folder.join(format!("{name}.txt")), None));
}

#[tokio::test]
async fn lines_of_help_have_at_most_100_columns() {
    for command in [&[][..], &["reset"], &["doctor"], &["copy"], &["migrate"]] {
        let shown = help(command).await;
        // Examples are not broken, so that they can be copied.
        let (text, _) = shown.split_once("\nExamples:\n").unwrap();
        let long: Vec<_> = text.lines().filter(|line| line.chars().count() > 100 && !line.contains("Usage:")).collect();
        assert!(long.is_empty(), "{command:?}: {long:#?}");
    }
}

#[tokio::test]
async fn completions_and_manual_pages_are_written() {
    let program = Program::bare();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(program.run(&["completions", shell]).await.ended(0).stdout.contains("ehcp"), "{shell}");
    }
    program.run(&["man", "--to", "pages"]).await.ended(0);
    for page in ["ehcp.1", "ehcp-reset.1", "ehcp-profile-add.1"] {
        let text = std::fs::read_to_string(program.folder().join("pages").join(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }
}
