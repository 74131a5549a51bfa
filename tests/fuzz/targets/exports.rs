//! JSON: exports of checkpoints, and the settings of a processor and of a store. Every parser gets each text.

#![no_main]

use eventhubs_checkpoint::admin::Export;
use eventhubs_checkpoint::processor::ProcessorConfig;
use eventhubs_checkpoint::store::StoreConfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(export) = serde_json::from_str::<Export>(text) {
        let again: Export = serde_json::from_str(&serde_json::to_string(&export).unwrap()).unwrap();
        assert_eq!(
            (again.schema, again.taken_at, again.partitions),
            (export.schema, export.taken_at, export.partitions)
        );
    }
    let processor = serde_json::from_str::<ProcessorConfig>(text);
    if let Ok(Err(refused)) = processor.map(|config| config.check_settings(&StoreConfig::default())) {
        check_setter(&refused.to_string());
    }
    let store = serde_json::from_str::<StoreConfig>(text);
    if let Ok(Err(refused)) = store.map(|config| ProcessorConfig::default().check_settings(&config)) {
        check_setter(&refused.to_string());
    }
});

/// The error names the setter of the setting that is refused.
fn check_setter(message: &str) {
    let setters = ["`with_", "`CheckpointPolicy::with_"];
    assert!(setters.iter().any(|setter| message.contains(setter)), "{message}");
}
