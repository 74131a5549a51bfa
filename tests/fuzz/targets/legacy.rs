//! Records of legacy programs: the first line is the rest of the blob's name after the prefix of the program, and the
//! other lines are its content. The parser of each program gets them.

#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::admin::migrate::{
    BlobContent, BlobContents, LegacyCheckpoint, LegacyListing, LegacyProgram, read,
};
use eventhubs_checkpoint::{ConsumerGroup, Result};
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

const PROGRAMS: [LegacyProgram; 4] = [
    LegacyProgram::EventProcessorHost,
    LegacyProgram::Functions,
    LegacyProgram::GoEventProcessorHost,
    LegacyProgram::Dapr,
];

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Builder::new_current_thread().enable_time().build().unwrap());

static GROUP: LazyLock<ConsumerGroup> =
    LazyLock::new(|| ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap());

/// A container with one blob.
#[derive(Debug)]
struct OneBlob {
    name: String,
    content: Vec<u8>,
}

#[async_trait]
impl BlobContents for OneBlob {
    async fn list_contents(&self, prefix: &str) -> Result<Vec<BlobContent>> {
        let is_listed = self.name.strip_prefix(prefix).is_some_and(|rest| !rest.contains('/'));
        let size = self.content.len() as u64;
        Ok(is_listed.then(|| BlobContent::new(&self.name, size, false)).into_iter().collect())
    }

    async fn read_content(&self, _: &str, limit: u32) -> Result<Vec<u8>> {
        Ok(self.content.iter().copied().take(limit as usize).collect())
    }
}

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let rest = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let content = parts.next().unwrap_or_default();
    for program in PROGRAMS {
        let prefix = &program.prefixes(&GROUP, None)[0];
        let mut blob = OneBlob { name: format!("{prefix}{rest}"), content: content.to_owned() };
        let found = read_one(&blob, program);
        assert!(found.checkpoints.len() + found.malformed.len() <= 1, "{found:?}");
        for malformed in &found.malformed {
            assert_eq!(format!("{}{}", found.prefix, malformed.partition), blob.name);
        }
        if let [checkpoint] = found.checkpoints.as_slice() {
            assert_eq!(format!("{}{}", found.prefix, checkpoint.partition), blob.name);
            // It becomes part of a filter expression.
            let offset = checkpoint.offset.as_deref().unwrap_or("0");
            assert!(!offset.contains(|letter: char| letter.is_control() || letter == '\''), "{offset:?}");
            blob.content = written_by(program, checkpoint).into_bytes();
            assert_eq!(read_one(&blob, program), found);
        }
    }
});

fn read_one(blob: &OneBlob, program: LegacyProgram) -> LegacyListing {
    RUNTIME.block_on(read(blob, program, &GROUP, None, Duration::from_secs(60))).unwrap()
}

/// Returns the content that the program writes for a checkpoint.
fn written_by(program: LegacyProgram, checkpoint: &LegacyCheckpoint) -> String {
    let LegacyCheckpoint { partition, owner, sequence_number, offset, .. } = checkpoint;
    match program {
        LegacyProgram::GoEventProcessorHost | LegacyProgram::Dapr => json!({
            "partitionID": partition,
            "owner": owner,
            "checkpoint": { "offset": offset, "sequenceNumber": sequence_number },
        }),
        _ => json!({ "Offset": offset, "SequenceNumber": sequence_number, "PartitionId": partition, "Owner": owner }),
    }
    .to_string()
}
