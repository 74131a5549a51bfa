//! Connection strings and URLs with a shared access signature. Every parser gets each text.

#![no_main]

use eventhubs_checkpoint::ConsumerGroup;
use eventhubs_checkpoint::azure_core::http::Url;
use eventhubs_checkpoint::blob::azure::Access;
use eventhubs_checkpoint::internal::azure::resolve_access;
use libfuzzer_sys::fuzz_target;

/// The secret of each seed, which no error may show.
const SECRET: &str = "aHVzaC1odXNo";

fuzz_target!(|text: &str| {
    for access in [Access::sas_url(text), Access::account_sas_url(text, "leases")] {
        match resolve_access(&access) {
            Ok((url, signature)) => {
                check_url(&url);
                assert!(signature.is_some_and(|signature| signature.secret().contains("sig=")), "{access:?}");
            }
            // Errors show the address, into which a change may copy the signature.
            Err(error) => assert!(is_hidden(&error) || is_in_path(text), "{error}"),
        }
    }
    match resolve_access(&Access::connection_string(text, "leases")) {
        Ok((url, _)) => check_url(&url),
        // Errors show keys, too.
        Err(error) => {
            let mut parts = text.split(';').filter_map(|part| part.split_once('='));
            let is_shown = |(key, value): (&str, &str)| key.contains(SECRET) || is_in_path(value);
            assert!(is_hidden(&error) || parts.any(is_shown), "{error}");
        }
    }
    match ConsumerGroup::from_connection_string(text, ConsumerGroup::DEFAULT_NAME) {
        Ok(group) => {
            for name in [group.namespace(), group.event_hub()] {
                assert!(!name.is_empty() && text.contains(name) && !name.contains(';'), "{name}");
            }
        }
        Err(error) => assert!(is_hidden(&error), "{error}"),
    }
});

fn check_url(url: &Url) {
    assert!(url.query().is_none() && url.fragment().is_none() && url.has_host(), "{url}");
}

fn is_hidden(error: &dyn std::error::Error) -> bool {
    !format!("{error} {error:?}").contains(SECRET)
}

fn is_in_path(text: &str) -> bool {
    Url::parse(text.trim()).is_ok_and(|url| url.path().contains(SECRET))
}
