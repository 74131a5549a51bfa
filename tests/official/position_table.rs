//! The statements of [`PositionTable`] in PostgreSQL: they do what they do in SQLite, whose rules the unit tests state.
//!
//! PostgreSQL is compiled to WebAssembly, and has one session.

use std::env;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::process::{Command, Stdio};

use eventhubs_checkpoint::processor::PositionTable;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, params_from_iter};
use serde_json::{Value, json};

use crate::support::install::npm_ci;
use crate::support::repository;

const STEPS: usize = 2000;

/// A statement of the table, by its place in [`statements`], and its parameters.
struct Step {
    statement: usize,
    partition: &'static str,
    numbers: Vec<Option<i64>>,
}

fn statements(table: &PositionTable) -> [&str; 4] {
    [table.begin_epoch(), table.advance_position(), table.follow_processor(), table.reset_position()]
}

fn random_steps(seed: u64) -> Vec<Step> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut steps = Vec::new();
    // Numbers rise slowly, so that some are behind, and others ahead of what the table has.
    for base in (0..).take(STEPS) {
        let epoch = Some(base / 6 + random.random_range(0..20));
        let number = base / 4 + random.random_range(0..8);
        let statement = random.random_range(0..4);
        let numbers = match statement {
            0 => vec![epoch],
            1 => vec![epoch, Some(number), Some(number + random.random_range(0..3))],
            2 => vec![epoch, Some(number)],
            _ => vec![random.random_bool(0.8).then_some(number - 10)],
        };
        let partition = if random.random_bool(0.5) { "0" } else { "1" };
        steps.push(Step { statement, partition, numbers });
    }
    steps
}

/// Returns what each statement does: the rows, or the number of changed ones.
fn run_in_sqlite(steps: &[Step]) -> Vec<Value> {
    let table = PositionTable::for_sqlite("user_positions").unwrap();
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch(table.create_table()).unwrap();
    let run = |step: &Step| {
        let numbers = step.numbers.iter().map(|number| number.map_or(SqlValue::Null, SqlValue::Integer));
        let parameters = params_from_iter([SqlValue::Text(step.partition.to_owned())].into_iter().chain(numbers));
        let sql = statements(&table)[step.statement];
        if step.statement == 0 {
            json!([[database.query_row(sql, parameters, |row| row.get::<_, Option<i64>>(0)).unwrap()]])
        } else {
            json!(database.execute(sql, parameters).unwrap())
        }
    };
    steps.iter().map(run).collect()
}

fn run_in_postgres(steps: &[Step]) -> Vec<Value> {
    let folder = repository::root().join("tests/official/postgres");
    npm_ci(&folder).unwrap();
    let table = PositionTable::for_postgres("public.user_positions").unwrap();
    // The second one changes nothing.
    let mut script = vec![json!({"sql": table.create_table(), "parameters": []}); 2];
    script.extend(steps.iter().map(|step| {
        let mut parameters = vec![json!(step.partition)];
        parameters.extend(step.numbers.iter().map(|number| json!(number)));
        json!({"sql": statements(&table)[step.statement], "parameters": parameters})
    }));
    let mut node = Command::new("node")
        .arg(folder.join("statements.mjs"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    node.stdin.take().unwrap().write_all(json!(script).to_string().as_bytes()).unwrap();
    let output = node.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    let results: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    results[2..].to_vec()
}

#[test]
fn postgres_does_what_sqlite_does() {
    let seed = env::var("EVENTHUBS_CHECKPOINT_SEED")
        .map_or_else(|_| RandomState::new().hash_one(()), |seed| seed.parse().expect("a number"));
    println!("EVENTHUBS_CHECKPOINT_SEED={seed}");
    let steps = random_steps(seed);
    let results = run_in_sqlite(&steps);
    let in_postgres = run_in_postgres(&steps);
    assert_eq!(in_postgres.len(), STEPS);
    for (place, (result, step)) in in_postgres.iter().zip(&steps).enumerate() {
        assert_eq!(*result, results[place], "step {place}: statement {}, {:?}", step.statement, step.numbers);
    }
    let advanced: Vec<_> = steps.iter().zip(&results).filter(|(step, _)| step.statement == 1).collect();
    let accepted = advanced.iter().filter(|(_, result)| **result == json!(1)).count();
    assert!(
        (STEPS / 200..STEPS / 5).contains(&accepted),
        "{accepted} of {} accepted: both cases occur",
        advanced.len()
    );
}
