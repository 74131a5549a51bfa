//! Reads the records by plain HTTP, without the proxies and without this crate.

use std::collections::BTreeMap;

use crate::chaos::Failure;
use crate::chaos::request::record;
use crate::chaos::writes::Kind;
use crate::history::Positions;
use crate::sas;

/// The records as one listing showed them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Owner of each partition; empty if it was released.
    pub owners: BTreeMap<String, String>,
    /// Sequence number of each checkpoint; -1 before the first event.
    pub positions: Positions,
}

impl Observation {
    /// Returns how many partitions each owner has.
    pub fn shares(&self) -> BTreeMap<&str, usize> {
        let mut shares = BTreeMap::new();
        for owner in self.owners.values() {
            *shares.entry(owner.as_str()).or_default() += 1;
        }
        shares
    }
}

/// Creates the container.
pub async fn create_container(client: &reqwest::Client, endpoint: &str, container: &str) -> Result<(), Failure> {
    let url = format!("{endpoint}/{container}?restype=container&{}", sas::account_sas("rwlc", sas::FUTURE));
    client.put(url).header("content-length", 0).send().await?.error_for_status()?;
    Ok(())
}

/// Lists all records. Concurrent writes may or may not be included.
pub async fn observe(client: &reqwest::Client, endpoint: &str, container: &str) -> Result<Observation, Failure> {
    let (mut observation, mut marker) = (Observation::default(), String::new());
    loop {
        let signature = sas::account_sas("rl", sas::FUTURE);
        let url =
            format!("{endpoint}/{container}?restype=container&comp=list&include=metadata&marker={marker}&{signature}");
        let page = client.get(url).send().await?.error_for_status()?.text().await?;
        read_page(&page, &mut observation);
        match element(&page, "NextMarker") {
            Some(next) if !next.is_empty() => next.clone_into(&mut marker),
            _ => return Ok(observation),
        }
    }
}

/// The names and the metadata of this run have no character that XML would escape.
fn read_page(page: &str, observation: &mut Observation) {
    for blob in page.split("<Blob>").skip(1) {
        let Some((kind, partition)) = element(blob, "Name").and_then(record) else { continue };
        match kind {
            Kind::Ownership => {
                let owner = element(blob, "ownerid").unwrap_or_default();
                observation.owners.insert(partition, owner.to_owned());
            }
            Kind::Checkpoint => {
                let position = element(blob, "sequencenumber").and_then(|number| number.parse().ok());
                observation.positions.insert(partition, position.unwrap_or(-1));
            }
        }
    }
}

/// Returns the text of the first element with this name.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_from_a_listing() {
        let page = "<EnumerationResults><Blobs>\
            <Blob><Name>ns/hub/$default/checkpoint/3</Name><Metadata><ownerid>i1</ownerid>\
            <sequencenumber>41</sequencenumber></Metadata></Blob>\
            <Blob><Name>ns/hub/$default/ownership/3</Name><Metadata><ownerid>i1</ownerid></Metadata></Blob>\
            <Blob><Name>ns/hub/$default/ownership/4</Name><Metadata><ownerid/></Metadata></Blob>\
            <Blob><Name>ns/hub/$default/heartbeat/i2</Name><Metadata><ownerid>i2</ownerid></Metadata></Blob>\
            </Blobs><NextMarker/></EnumerationResults>";
        let mut observation = Observation::default();
        read_page(page, &mut observation);
        assert_eq!(observation.positions, BTreeMap::from([("3".to_owned(), 41)]));
        assert_eq!(observation.shares(), BTreeMap::from([("", 1), ("i1", 1)]));
    }
}
