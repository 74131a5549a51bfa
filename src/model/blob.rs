//! What the records are read from: the metadata and the version of a blob.

use std::collections::BTreeMap;
use std::fmt;
use std::iter;
use std::ops::Index;
use std::slice;

use compact_str::CompactString;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The metadata of a blob: keys and values, ordered by key. Keys are kept in lower case, because Azure ignores their
/// case: a key replaces one that differs only by case. To find a key, pass it in lower case.
///
/// ```
/// use eventhubs_checkpoint::blob::Metadata;
///
/// let mut metadata = Metadata::from([("offset", "4096"), ("OwnerId", "a")]);
/// metadata.insert("ownerid", "b");
/// assert_eq!(metadata.get("ownerid"), Some("b"));
/// assert_eq!(&metadata["offset"], "4096");
/// assert_eq!(metadata.keys().collect::<Vec<_>>(), ["offset", "ownerid"]);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Ordered by key. A record has so few pairs that nothing is faster.
    pairs: Vec<(String, String)>,
}

impl Metadata {
    /// Creates metadata without pairs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns whether there are no pairs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns the value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.find_position(key).ok().map(|position| self.pairs[position].1.as_str())
    }

    /// Returns whether there is a value for this key.
    #[must_use]
    pub fn contains_key(&self, key: &str) -> bool {
        self.find_position(key).is_ok()
    }

    /// Sets the value of a key. Returns the value that it replaces.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<String>) -> Option<String> {
        let mut key = key.into();
        key.make_ascii_lowercase();
        match self.find_position(&key) {
            Ok(position) => Some(std::mem::replace(&mut self.pairs[position].1, value.into())),
            Err(position) => {
                self.pairs.insert(position, (key, value.into()));
                None
            }
        }
    }

    /// Removes a key. Returns its value.
    pub fn remove(&mut self, key: &str) -> Option<String> {
        let position = self.find_position(key).ok()?;
        Some(self.pairs.remove(position).1)
    }

    /// Keeps only the pairs for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &str) -> bool) {
        self.pairs.retain(|(key, value)| keep(key, value));
    }

    /// Removes all pairs.
    pub fn clear(&mut self) {
        self.pairs.clear();
    }

    /// Returns the pairs, ordered by key.
    pub fn iter(&self) -> Iter<'_> {
        self.pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Returns the keys in their order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    /// Returns the values, ordered by key.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(_, value)| value)
    }

    /// Returns where the key is, or where it belongs.
    fn find_position(&self, key: &str) -> Result<usize, usize> {
        self.pairs.binary_search_by(|(present, _)| present.as_str().cmp(key))
    }
}

/// The pairs of [`Metadata`], ordered by key.
pub(crate) type Iter<'a> = iter::Map<slice::Iter<'a, (String, String)>, fn(&'a (String, String)) -> (&'a str, &'a str)>;

impl<'a> IntoIterator for &'a Metadata {
    type Item = (&'a str, &'a str);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl IntoIterator for Metadata {
    type Item = (String, String);
    type IntoIter = std::vec::IntoIter<(String, String)>;

    fn into_iter(self) -> Self::IntoIter {
        self.pairs.into_iter()
    }
}

/// Of several pairs with one key, the last one counts.
impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut metadata = Self::new();
        metadata.extend(pairs);
        metadata
    }
}

impl<K: Into<String>, V: Into<String>> Extend<(K, V)> for Metadata {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, pairs: I) {
        for (key, value) in pairs {
            self.insert(key, value);
        }
    }
}

impl<K: Into<String>, V: Into<String>, const N: usize> From<[(K, V); N]> for Metadata {
    fn from(pairs: [(K, V); N]) -> Self {
        pairs.into_iter().collect()
    }
}

/// Returns the value of a key.
///
/// # Panics
///
/// If there is no such key.
impl Index<&str> for Metadata {
    type Output = str;

    fn index(&self, key: &str) -> &str {
        match self.get(key) {
            Some(value) => value,
            None => panic!("no metadata with the key {key:?}"),
        }
    }
}

/// Serialized like a map.
impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(BTreeMap::<String, String>::deserialize(deserializer)?.into_iter().collect())
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

/// The version of a blob. Headers quote it and listings do not; this type stores it without quotes. The ETags of Azure
/// are so short that they need no allocation.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ETag(CompactString);

impl ETag {
    /// Creates an ETag from the text of a response, with or without quotes.
    ///
    /// ```
    /// use eventhubs_checkpoint::blob::ETag;
    /// assert_eq!(ETag::new("\"0x8D1\""), ETag::new("0x8D1"));
    /// ```
    #[must_use]
    pub fn new(raw: &str) -> Self {
        Self(raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(raw).into())
    }

    /// Returns the value without quotes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the value with quotes, as `If-Match` requires.
    #[must_use]
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

/// Writes the value without quotes.
impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ETag({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A change, and the key and the value that it concerns.
    fn change() -> impl Strategy<Value = (bool, String, String)> {
        (any::<bool>(), "[a-c\u{e4}]{0,2}", "[x\u{1f600}]{0,3}")
    }

    proptest! {
        #[test]
        fn equals_a_map_after_any_changes(changes in prop::collection::vec(change(), 0..24)) {
            let mut metadata = Metadata::new();
            let mut map = BTreeMap::new();
            for (insert, key, value) in changes {
                if insert {
                    prop_assert_eq!(metadata.insert(&key, &value), map.insert(key, value));
                } else {
                    prop_assert_eq!(metadata.remove(&key), map.remove(&key));
                }
                let pairs: Vec<_> = map.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
                prop_assert_eq!(metadata.iter().collect::<Vec<_>>(), pairs.clone());
                prop_assert_eq!((metadata.len(), metadata.is_empty()), (map.len(), map.is_empty()));
                prop_assert!(pairs.iter().all(|(key, value)| metadata.get(key) == Some(value)));
                prop_assert!(pairs.iter().all(|(key, value)| metadata[*key] == **value));
                prop_assert!(map.keys().all(|key| metadata.contains_key(key)) && !metadata.contains_key("none"));
                prop_assert_eq!(metadata.values().collect::<Vec<_>>(), map.values().collect::<Vec<_>>());
                let text = serde_json::to_string(&metadata).unwrap();
                prop_assert_eq!(serde_json::from_str::<Metadata>(&text).unwrap(), metadata.clone());
                prop_assert_eq!(&metadata, &pairs.iter().rev().copied().collect());
                prop_assert_eq!(format!("{metadata:?}"), format!("{map:?}"));
                prop_assert_eq!(metadata.clone().into_iter().collect::<BTreeMap<_, _>>(), map.clone());
            }
        }
    }

    #[test]
    fn retained_pairs_keep_their_values() {
        let mut metadata = Metadata::from([("a", "1"), ("b", "2"), ("c", "3")]);
        metadata.retain(|key, _| key != "b");
        assert_eq!(metadata, Metadata::from([("c", "3"), ("a", "1")]));
        assert_eq!(metadata.get("b"), None);
    }

    #[test]
    fn keys_that_differ_by_case_are_one_key() {
        let mut metadata = Metadata::from([("OwnerId", "a"), ("Offset", "1")]);
        assert_eq!(metadata.insert("ownerid", "b").as_deref(), Some("a"));
        assert_eq!(metadata, [("OFFSET", "1"), ("OWNERID", "b")].into_iter().collect());
        assert_eq!(metadata.keys().collect::<Vec<_>>(), ["offset", "ownerid"]);
        metadata.clear();
        assert!(metadata.is_empty());
    }

    #[test]
    fn an_etag_is_sent_in_quotes_and_kept_without() {
        let etag = ETag::new("\"0x1\"");
        assert_eq!((etag.as_str(), etag.quoted().as_str()), ("0x1", "\"0x1\""));
        assert_eq!(format!("{etag} {etag:?}"), "0x1 ETag(0x1)");
    }
}
