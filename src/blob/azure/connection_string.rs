//! Azure Storage connection strings.
//!
//! Format: <https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string>.

use std::collections::BTreeMap;

use azure_core::credentials::Secret;
use azure_core::http::Url;

use super::credentials::Credentials;
use super::endpoint::{EMULATOR_ACCOUNT, parse_url};
use crate::error::{Error, Result};

/// The key of [`EMULATOR_ACCOUNT`].
const EMULATOR_KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const EMULATOR_URL: &str = "http://127.0.0.1:10000/devstoreaccount1";

/// What a connection string specifies for the blob service.
#[derive(Debug)]
pub(super) struct ConnectionString {
    pub(super) account_url: Url,
    pub(super) credentials: Credentials,
}

impl ConnectionString {
    /// Parses a connection string. Errors name keys, but never values.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let settings = Settings::parse(text)?;
        if settings.get("UseDevelopmentStorage").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Self::emulator(&settings);
        }
        Ok(Self { account_url: settings.account_url()?, credentials: settings.credentials()? })
    }

    fn emulator(settings: &Settings<'_>) -> Result<Self> {
        if settings.get("DevelopmentStorageProxyUri").is_some() {
            return Err(problem(
                "DevelopmentStorageProxyUri is not supported; set BlobEndpoint, AccountName and AccountKey",
            ));
        }
        let account_url = parse_url("the emulator's address", EMULATOR_URL)?;
        Ok(Self { account_url, credentials: Credentials::account_key(EMULATOR_ACCOUNT, Secret::new(EMULATOR_KEY))? })
    }
}

/// The settings by lowercase key.
struct Settings<'a>(BTreeMap<String, &'a str>);

impl<'a> Settings<'a> {
    fn parse(text: &'a str) -> Result<Self> {
        let mut settings = BTreeMap::new();
        for (index, part) in text.split(';').map(str::trim).enumerate().filter(|(_, part)| !part.is_empty()) {
            let Some((key, value)) = part.split_once('=') else {
                return Err(problem(format!("part {} has no '='; each must be Key=Value", index + 1)));
            };
            let (key, value) = (key.trim(), value.trim());
            if settings.insert(key.to_ascii_lowercase(), value).is_some() {
                return Err(problem(format!("{key} occurs twice")));
            }
        }
        if settings.get("endpoint").is_some_and(|value| value.starts_with("sb:")) {
            return Err(problem(
                "it belongs to an Event Hubs namespace; use the connection string of a storage account",
            ));
        }
        if settings.is_empty() {
            return Err(problem("it is empty"));
        }
        Ok(Self(settings))
    }

    /// Returns the value of a setting, unless it is empty.
    fn get(&self, key: &str) -> Option<&'a str> {
        self.0.get(&key.to_ascii_lowercase()).copied().filter(|value| !value.is_empty())
    }

    fn require(&self, key: &str, when: &str) -> Result<&'a str> {
        self.get(key).ok_or_else(|| problem(format!("{key} is missing or empty; it is required {when}")))
    }

    fn account_url(&self) -> Result<Url> {
        let Some(endpoint) = self.get("BlobEndpoint") else {
            return self.account_url_from_name();
        };
        let url = parse_url("BlobEndpoint in the connection string", endpoint)?;
        if url.query().is_some() {
            return Err(problem("BlobEndpoint must not have a query; a signature goes into SharedAccessSignature"));
        }
        Ok(url)
    }

    fn account_url_from_name(&self) -> Result<Url> {
        let account = self.require("AccountName", "without BlobEndpoint")?;
        if !account.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
            return Err(problem("AccountName must consist of lowercase letters and digits"));
        }
        let protocol = self.get("DefaultEndpointsProtocol").unwrap_or("https").to_ascii_lowercase();
        if !matches!(protocol.as_str(), "http" | "https") {
            return Err(problem("DefaultEndpointsProtocol must be https or http"));
        }
        let suffix = self.get("EndpointSuffix").unwrap_or("core.windows.net");
        if !suffix.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b':')) {
            return Err(problem("EndpointSuffix must be a domain, like core.windows.net"));
        }
        parse_url("the address from the connection string", &format!("{protocol}://{account}.blob.{suffix}"))
    }

    fn credentials(&self) -> Result<Credentials> {
        match (self.get("AccountKey"), self.get("SharedAccessSignature")) {
            (Some(_), Some(_)) => Err(problem("it has both AccountKey and SharedAccessSignature; remove one")),
            (None, None) => Err(problem("it has neither AccountKey nor SharedAccessSignature; one is required")),
            (None, Some(signature)) => {
                Credentials::sas(signature).ok_or_else(|| problem("SharedAccessSignature has no signature (sig=...)"))
            }
            (Some(key), None) => {
                let account = self.require("AccountName", "with AccountKey")?;
                Credentials::account_key(account, Secret::new(key.to_owned()))
            }
        }
    }
}

fn problem(what: impl std::fmt::Display) -> Error {
    Error::config(format!("the storage connection string is invalid: {what}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hostile::hostile_text;

    const KEY: &str = "c2VjcmV0LXNlY3JldA==";

    fn parse(text: &str) -> (String, Credentials) {
        let parsed = ConnectionString::parse(text).unwrap();
        (parsed.account_url.to_string(), parsed.credentials)
    }

    fn key_of(credentials: Credentials) -> (String, String) {
        match credentials {
            Credentials::AccountKey { account, key } => (account, key.secret().to_owned()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn connection_string_of_the_portal() {
        let (url, credentials) = parse(&format!(
            "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey={KEY};EndpointSuffix=core.windows.net"
        ));
        assert_eq!(url, "https://acct.blob.core.windows.net/");
        assert_eq!(key_of(credentials), ("acct".to_owned(), KEY.to_owned()));
    }

    #[test]
    fn order_case_spaces_and_last_semicolon_are_ignored() {
        let (url, credentials) = parse(&format!(
            " accountkey = {KEY} ; ENDPOINTSUFFIX=core.chinacloudapi.cn;accountName=acct;defaultendpointsprotocol=HTTP; "
        ));
        assert_eq!(url, "http://acct.blob.core.chinacloudapi.cn/");
        assert_eq!(key_of(credentials).1, KEY);
    }

    /// Returns all orders of these parts, each joined to one text.
    fn permutations(parts: &[String]) -> Vec<String> {
        let Some((first, rest)) = parts.split_first() else { return vec![String::new()] };
        let insert_everywhere = |text: &String| {
            let others: Vec<&str> = text.split_terminator(';').collect();
            (0..=others.len())
                .map(|place| {
                    let mut all = others.clone();
                    all.insert(place, first);
                    all.join(";")
                })
                .collect::<Vec<_>>()
        };
        permutations(rest).iter().flat_map(insert_everywhere).collect()
    }

    #[test]
    fn key_order_does_not_matter() {
        let key = format!("AccountKey={KEY}");
        let common = ["DefaultEndpointsProtocol=https", "AccountName=acct", &key, "EndpointSuffix=core.windows.net"];
        let endpoint = "BlobEndpoint=http://127.0.0.1:5/acct";
        for (last, expected_url) in
            [("QueueEndpoint=x", "https://acct.blob.core.windows.net/"), (endpoint, "http://127.0.0.1:5/acct")]
        {
            let parts: Vec<String> = common.into_iter().chain([last]).map(str::to_owned).collect();
            let texts = permutations(&parts);
            assert_eq!(texts.iter().collect::<std::collections::BTreeSet<_>>().len(), 120);
            for text in texts {
                let (url, credentials) = parse(&text);
                assert_eq!((url.as_str(), key_of(credentials)), (expected_url, ("acct".to_owned(), KEY.to_owned())));
            }
        }
    }

    #[test]
    fn key_order_does_not_matter_with_a_signature() {
        let parts =
            ["BlobEndpoint=https://a.example", "SharedAccessSignature=sv=1&sig=x%3D", "AccountName=acct", "Q=x"];
        for text in permutations(&parts.map(str::to_owned)) {
            let (url, credentials) = parse(&text);
            assert_eq!(url, "https://a.example/");
            assert!(matches!(credentials, Credentials::Sas(sas) if sas.secret() == "sv=1&sig=x%3D"), "{text}");
        }
    }

    #[test]
    fn blob_endpoint_overrides_the_account_name() {
        let (url, credentials) = parse(&format!(
            "AccountName=devstoreaccount1;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:5/devstoreaccount1;QueueEndpoint=x"
        ));
        assert_eq!(url, "http://127.0.0.1:5/devstoreaccount1");
        assert_eq!(key_of(credentials).0, "devstoreaccount1");
    }

    #[test]
    fn development_storage_means_the_emulator() {
        let (url, credentials) = parse("usedevelopmentstorage=TRUE");
        assert_eq!(url, EMULATOR_URL);
        assert_eq!(key_of(credentials), (EMULATOR_ACCOUNT.to_owned(), EMULATOR_KEY.to_owned()));
    }

    #[test]
    fn question_mark_before_the_signature_is_optional() {
        for question_mark in ["", "?"] {
            let text =
                format!("BlobEndpoint=https://a.example;SharedAccessSignature={question_mark}sv=2021&sig=a%2Bb%3D");
            let (url, credentials) = parse(&text);
            assert_eq!(url, "https://a.example/");
            assert!(matches!(credentials, Credentials::Sas(sas) if sas.secret() == "sv=2021&sig=a%2Bb%3D"));
        }
    }

    #[test]
    fn errors_name_the_key_and_show_no_value() {
        let cases = [
            ("", "empty"),
            (" ; ", "empty"),
            ("AccountName=hush;hush", "part 2 has no '='"),
            ("AccountName=hush;AccountName=hush", "AccountName occurs twice"),
            ("AccountName=hush", "neither AccountKey nor SharedAccessSignature"),
            ("AccountName=hush;AccountKey=", "neither AccountKey nor SharedAccessSignature"),
            ("AccountName=hush;AccountKey=***hush", "base64"),
            ("AccountKey=aHVzaA==", "AccountName is missing"),
            ("AccountKey=aHVzaA==;BlobEndpoint=https://hush", "AccountName is missing"),
            ("AccountName=Hush_hush;AccountKey=aHVzaA==", "AccountName must"),
            ("AccountName=hush;AccountKey=aHVzaA==;DefaultEndpointsProtocol=hush", "DefaultEndpointsProtocol must"),
            ("AccountName=hush;AccountKey=aHVzaA==;EndpointSuffix=hush/hush", "EndpointSuffix must"),
            ("AccountName=hush;AccountKey=aHVzaA==;BlobEndpoint=hush", "BlobEndpoint"),
            ("AccountName=hush;AccountKey=aHVzaA==;BlobEndpoint=https://a?sig=hush", "BlobEndpoint must not"),
            ("AccountName=hush;AccountKey=aHVzaA==;SharedAccessSignature=sig=hush", "remove one"),
            ("AccountName=hush;SharedAccessSignature=sv=hush", "SharedAccessSignature has no signature"),
            ("UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://hush", "DevelopmentStorageProxyUri"),
            ("Endpoint=sb://hush.servicebus.windows.net/;SharedAccessKey=hush", "Event Hubs"),
        ];
        for (text, expected) in cases {
            let error = ConnectionString::parse(text).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(expected), "{text}: {shown}");
            assert!(!shown.to_lowercase().contains("hush") && !shown.contains("aHVzaA"), "{shown}");
        }
    }

    const SAMPLES: &[&str] = &[
        "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=aHVzaC1odXNo;EndpointSuffix=core.windows.net",
        "BlobEndpoint=https://a.example/acct;SharedAccessSignature=sv=2021-01-01&sp=rl&sig=aHVzaC1odXNo",
        "UseDevelopmentStorage=true",
        "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=aHVzaC1odXNo;EntityPath=orders",
    ];

    proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(text in hostile_text(SAMPLES)) {
            let Ok(parsed) = ConnectionString::parse(&text) else { return Ok(()) };
            prop_assert!(parsed.account_url.query().is_none() && parsed.account_url.has_host());
        }
    }
}
