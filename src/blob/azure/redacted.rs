//! Causes of failures, without their secrets.

use std::error::Error as StdError;
use std::fmt;

/// A chain of errors as text, without the queries of URLs: a query may contain a signature, and the HTTP client shows
/// whole URLs.
pub(super) struct RedactedCause {
    text: String,
    source: Option<Box<RedactedCause>>,
}

impl RedactedCause {
    pub(super) fn of(error: &(dyn StdError + 'static)) -> Self {
        let source = error.source().map(|source| Box::new(Self::of(source)));
        Self { text: without_queries(&error.to_string()), source }
    }
}

impl fmt::Display for RedactedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for RedactedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)?;
        match &self.source {
            Some(source) => write!(f, " caused by {source:?}"),
            None => Ok(()),
        }
    }
}

impl StdError for RedactedCause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Removes each query, from its question mark to the end of the word.
fn without_queries(text: &str) -> String {
    let ends_word = |character: char| character.is_whitespace() || matches!(character, ')' | '>' | '"' | '\'');
    let mut parts = text.split('?');
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        result.push('?');
        result.push_str(part.find(ends_word).map_or("", |end| &part[end..]));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_removed_and_the_rest_is_kept() {
        for (text, expected) in [
            ("for url (http://a/c?sv=1&sig=hush): refused", "for url (http://a/c?): refused"),
            ("http://a/c?sig=hush", "http://a/c?"),
            ("'http://a?sig=hush' then \"http://b?x=hush?sig=hush\"", "'http://a?' then \"http://b??\""),
            ("why? because", "why? because"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(without_queries(text), expected);
        }
    }
}
