//! The metadata of a blob.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Index;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

/// The pairs of most records, without an allocation for their ends.
const USUAL_PAIRS: usize = 6;

/// The metadata of a blob: keys and values, ordered by key. Keys must be in lower case, because Azure ignores their case;
/// they are not converted. A backend returns them in lower case.
///
/// It has few and short pairs, and a listing returns hundreds of blobs. All texts are in one allocation, and a key is
/// found by comparing all of them.
///
/// ```
/// use eventhubs_checkpoint::blob::Metadata;
///
/// let mut metadata = Metadata::from([("offset", "4096"), ("ownerid", "a")]);
/// metadata.insert("ownerid", "b");
/// assert_eq!(metadata.get("ownerid"), Some("b"));
/// assert_eq!(&metadata["offset"], "4096");
/// assert_eq!(metadata.keys().collect::<Vec<_>>(), ["offset", "ownerid"]);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Key and value of each pair in turn.
    text: String,
    pairs: SmallVec<[Ends; USUAL_PAIRS]>,
}

/// Where a key and its value end in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    key: usize,
    value: usize,
}

impl Metadata {
    /// Creates metadata without pairs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates metadata from pairs, which it sorts. Of several pairs with one key, the last one counts.
    pub(crate) fn of(pairs: &mut [(&str, &str)]) -> Self {
        let bytes = pairs.iter().map(|(key, value)| key.len() + value.len()).sum();
        let mut metadata = Self { text: String::with_capacity(bytes), pairs: SmallVec::new() };
        if !is_ordered(pairs) {
            pairs.sort_by_key(|(key, _)| *key);
        }
        if !is_ordered(pairs) {
            metadata.extend(pairs.iter().copied());
            return metadata;
        }
        for (key, value) in pairs {
            metadata.text.push_str(key);
            let key = metadata.text.len();
            metadata.text.push_str(value);
            metadata.pairs.push(Ends { key, value: metadata.text.len() });
        }
        metadata
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
        self.position(key).ok().map(|position| self.pair(position).1)
    }

    /// Returns whether there is a value for this key.
    #[must_use]
    pub fn contains_key(&self, key: &str) -> bool {
        self.position(key).is_ok()
    }

    /// Sets the value of a key. Returns the value that it replaces.
    pub fn insert(&mut self, key: impl AsRef<str>, value: impl AsRef<str>) -> Option<String> {
        let (key, value) = (key.as_ref(), value.as_ref());
        match self.position(key) {
            Ok(position) => {
                let Ends { key: start, value: end } = self.pairs[position];
                let replaced = self.text[start..end].to_owned();
                self.text.replace_range(start..end, value);
                self.pairs[position].value = start + value.len();
                self.shift(position + 1, end, start + value.len());
                Some(replaced)
            }
            Err(position) => {
                let start = self.start(position);
                self.text.insert_str(start, key);
                self.text.insert_str(start + key.len(), value);
                let ends = Ends { key: start + key.len(), value: start + key.len() + value.len() };
                self.shift(position, start, ends.value);
                self.pairs.insert(position, ends);
                None
            }
        }
    }

    /// Removes a key. Returns its value.
    pub fn remove(&mut self, key: &str) -> Option<String> {
        let position = self.position(key).ok()?;
        let value = self.pair(position).1.to_owned();
        let (start, end) = (self.start(position), self.pairs[position].value);
        self.text.replace_range(start..end, "");
        self.pairs.remove(position);
        self.shift(position, end, start);
        Some(value)
    }

    /// Keeps only the pairs for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &str) -> bool) {
        *self = self.iter().filter(|(key, value)| keep(key, value)).collect();
    }

    /// Removes all pairs.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the pairs, ordered by key.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter { metadata: self, next: 0 }
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
    fn position(&self, key: &str) -> Result<usize, usize> {
        // The last one first: usually keys are inserted in their order.
        for position in (0..self.pairs.len()).rev() {
            match self.pair(position).0.cmp(key) {
                std::cmp::Ordering::Less => return Err(position + 1),
                std::cmp::Ordering::Equal => return Ok(position),
                std::cmp::Ordering::Greater => {}
            }
        }
        Err(0)
    }

    fn start(&self, position: usize) -> usize {
        position.checked_sub(1).map_or(0, |before| self.pairs[before].value)
    }

    fn pair(&self, position: usize) -> (&str, &str) {
        let ends = self.pairs[position];
        (&self.text[self.start(position)..ends.key], &self.text[ends.key..ends.value])
    }

    /// Shifts the ends of the pairs from this position on, because the text before them changed its end.
    fn shift(&mut self, position: usize, from: usize, to: usize) {
        for ends in &mut self.pairs[position..] {
            *ends = Ends { key: ends.key - from + to, value: ends.value - from + to };
        }
    }
}

/// Returns whether the keys are ordered, and no key occurs twice.
fn is_ordered(pairs: &[(&str, &str)]) -> bool {
    pairs.is_sorted_by(|(left, _), (right, _)| left < right)
}

/// The pairs of [`Metadata`], ordered by key.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    metadata: &'a Metadata,
    next: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let pair = (self.next < self.metadata.len()).then(|| self.metadata.pair(self.next));
        self.next += 1;
        pair
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.metadata.len().saturating_sub(self.next);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Iter<'_> {}

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
        let pairs = self.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
        pairs.collect::<Vec<_>>().into_iter()
    }
}

/// Of several pairs with one key, the last one counts.
impl<K: AsRef<str>, V: AsRef<str>> FromIterator<(K, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut metadata = Self::new();
        metadata.extend(pairs);
        metadata
    }
}

impl<K: AsRef<str>, V: AsRef<str>> Extend<(K, V)> for Metadata {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, pairs: I) {
        for (key, value) in pairs {
            self.insert(key, value);
        }
    }
}

impl<K: AsRef<str>, V: AsRef<str>, const N: usize> From<[(K, V); N]> for Metadata {
    fn from(pairs: [(K, V); N]) -> Self {
        Self::of(&mut pairs.each_ref().map(|(key, value)| (key.as_ref(), value.as_ref())))
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
            let (mut metadata, mut map) = (Metadata::new(), BTreeMap::new());
            for (insert, key, value) in changes {
                if insert {
                    prop_assert_eq!(metadata.insert(&key, &value), map.insert(key, value));
                } else {
                    prop_assert_eq!(metadata.remove(&key), map.remove(&key));
                }
                let pairs: Vec<_> = map.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
                prop_assert_eq!(metadata.iter().collect::<Vec<_>>(), pairs.clone());
                prop_assert!(pairs.iter().all(|(key, value)| metadata.get(key) == Some(value)));
                prop_assert_eq!(&metadata, &pairs.iter().rev().copied().collect());
                let mut twice: Vec<_> = pairs.iter().rev().map(|(key, _)| (*key, "replaced")).chain(pairs.clone()).collect();
                prop_assert_eq!(&metadata, &Metadata::of(&mut twice));
                prop_assert_eq!(&metadata, &Metadata::of(&mut pairs.into_iter().rev().collect::<Vec<_>>()));
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
}
