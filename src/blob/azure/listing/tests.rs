//! The listings of Azure, others, and anything at all.

use time::macros::datetime;
use tokio::time::Instant;

use super::*;

fn response() -> ResponseInfo {
    ResponseInfo { server_time: datetime!(2026-11-20 12:00:00 UTC), received_at: Instant::now() }
}

fn parse(inside: &str) -> Result<Page, PageError> {
    let text = format!(
        "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ServiceEndpoint=\"https://a/\">{inside}\
         </EnumerationResults>"
    );
    parse_page(text.as_bytes(), Detail::Version, response())
}

const PROPERTIES: &str =
    "<Properties><Last-Modified>Fri, 20 Nov 2026 11:59:00 GMT</Last-Modified><Etag>0x8D1</Etag></Properties>";

fn blob(inside: &str) -> Blob {
    let page = parse(&format!("<Blobs><Blob>{inside}{PROPERTIES}</Blob></Blobs><NextMarker />")).unwrap();
    page.blobs.into_iter().next().unwrap()
}

#[test]
fn parses_a_page_of_azure() {
    let page = parse(
        "<Prefix>p</Prefix><Blobs><Blob><Name>p/1</Name><Properties><Creation-Time>x</Creation-Time>\
         <Last-Modified>Fri, 20 Nov 2026 11:59:00 GMT</Last-Modified><Etag>0x8D1</Etag>\
         <Content-Length>0</Content-Length><Content-MD5 /></Properties><Metadata><OwnerId>me</OwnerId><since/>\
         </Metadata><OrMetadata /></Blob></Blobs><NextMarker>2!88!abc</NextMarker>",
    )
    .unwrap();
    let expected = [("ownerid", "me"), ("since", "")];
    let [blob] = page.blobs.as_slice() else { panic!("{page:?}") };
    assert_eq!((blob.name.as_str(), blob.etag.as_str()), ("p/1", "0x8D1"));
    assert_eq!(blob.metadata, Metadata::from(expected));
    assert_eq!(blob.last_modified, datetime!(2026-11-20 11:59:00 UTC));
    assert_eq!(blob.age(), std::time::Duration::from_secs(60));
    assert_eq!(page.next_marker.as_deref(), Some("2!88!abc"));
}

#[test]
fn empty_or_absent_marker_ends_the_listing() {
    for inside in ["<Blobs/><NextMarker/>", "<Blobs></Blobs><NextMarker></NextMarker>", "<Blobs/>"] {
        let page = parse(inside).unwrap();
        assert!(page.blobs.is_empty() && page.next_marker.is_none(), "{inside}");
    }
}

#[test]
fn entities_do_not_split_texts() {
    assert_eq!(blob("<Name>a&amp;b&lt;&gt;&quot;&apos;&#x41;&#66;c</Name>").name, "a&b<>\"'ABc");
    assert_eq!(blob("<Name><![CDATA[a<b]]>&amp;c</Name>").name, "a<b&c");
    let metadata = blob("<Name>n</Name><Metadata><k> x &amp; y </k></Metadata>").metadata;
    assert_eq!(&metadata["k"], " x & y ");
    assert!(matches!(parse("<NextMarker>&nbsp;</NextMarker>"), Err(PageError::Entity(name)) if name == "nbsp"));
}

#[test]
fn only_encoded_names_are_decoded() {
    assert_eq!(blob("<Name Encoded=\"true\">a%EF%BF%BF%25%2F</Name>").name, "a\u{ffff}%/");
    assert_eq!(blob("<Name Encoded=\"false\">a%25</Name>").name, "a%25");
    assert_eq!(blob("<Name>a%25</Name>").name, "a%25");
}

#[test]
fn metadata_keys_may_be_named_like_elements() {
    let blob = blob(
        "<Name>n</Name><Metadata><Name>1</Name><Etag>2</Etag><Metadata>3</Metadata><Blob>4</Blob><NextMarker>5\
         </NextMarker><Properties>6</Properties></Metadata>",
    );
    assert_eq!(
        blob.metadata.keys().collect::<Vec<_>>(),
        ["blob", "etag", "metadata", "name", "nextmarker", "properties"]
    );
    assert_eq!((blob.name.as_str(), blob.etag.as_str()), ("n", "0x8D1"));
}

#[test]
fn unusable_blob_is_skipped() {
    let bad_date = "<Properties><Last-Modified>yesterday</Last-Modified><Etag>1</Etag></Properties>";
    let page = parse(&format!(
        "<Blobs><Blob><Name>1</Name></Blob><Blob><Name>2</Name>{bad_date}</Blob><Blob><Name>3</Name>{PROPERTIES}\
         </Blob></Blobs>"
    ))
    .unwrap();
    let names: Vec<&str> = page.blobs.iter().map(|blob| blob.name.as_str()).collect();
    assert_eq!(names, ["3"]);
}

/// The order is as in Azure. A blob without a version has a content, too.
#[test]
fn sizes_and_leases_are_read_on_request() {
    let blob = |name: &str, lease: &str| {
        format!(
            "<Blob><Name>{name}</Name><Properties><Last-Modified>Fri, 20 Nov 2026 11:59:00 GMT</Last-Modified>\
             <Etag>1</Etag><Content-Length>131</Content-Length><LeaseStatus>x</LeaseStatus>{lease}</Properties></Blob>"
        )
    };
    let states = ["leased", "breaking", "available", "expired", "broken"];
    let blobs = states.map(|state| blob(state, &format!("<LeaseState>{state}</LeaseState>"))).concat();
    let text = format!(
        "<EnumerationResults><Blobs><BlobPrefix><Name>p/</Name></BlobPrefix>{blobs}{}<Blob><Name>old</Name></Blob>\
         </Blobs></EnumerationResults>",
        blob("none", "")
    );
    let page = parse_page(text.as_bytes(), Detail::Content, response()).unwrap();
    let leased: Vec<_> = page.contents.iter().filter(|blob| blob.is_leased).map(|blob| blob.name.as_str()).collect();
    assert_eq!(leased, ["leased", "breaking"]);
    let names: Vec<_> = page.contents.iter().map(|blob| blob.name.as_str()).collect();
    assert_eq!(names, [&states[..], &["none", "old"]].concat(), "a prefix is no blob");
    assert!(page.contents[..6].iter().all(|blob| blob.size == 131));
    assert!(parse(&format!("<Blobs>{blobs}</Blobs>")).unwrap().contents.is_empty());
}

#[test]
fn truncated_body_is_rejected() {
    let whole =
        format!("<EnumerationResults><Blobs><Blob><Name>1</Name>{PROPERTIES}</Blob></Blobs></EnumerationResults>");
    assert!(parse_page(whole.as_bytes(), Detail::Version, response()).is_ok());
    for length in 0..whole.len() {
        assert!(parse_page(&whole.as_bytes()[..length], Detail::Version, response()).is_err(), "{length}");
    }
}

#[test]
fn other_documents_are_rejected() {
    for body in [b"{}".as_slice(), b"<html></html>", b"\xff\xfe", b"<a><b></a>"] {
        assert!(parse_page(body, Detail::Version, response()).is_err(), "{}", String::from_utf8_lossy(body));
    }
}

/// The same listing, read twice: by the parser, and in the simplest way.
mod differential {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::tree::{find_difference, said_by_parser, said_by_tree};

    /// Texts, as a listing spells them.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => "[a-zA-Z0-9/$. -]{0,24}",
            1 => "[a-z]{0,4}(&amp;|&lt;|&#x41;|<!\\[CDATA\\[<b>\\]\\]>|<!--c-->|\r\n|\u{e4}|&nbsp;)[a-z]{0,4}",
        ]
    }

    fn metadata() -> impl Strategy<Value = String> {
        let key = prop_oneof![Just("ownerid"), Just("OwnerId"), Just("Name"), Just("Etag"), Just("a_1")];
        let pair = prop_oneof![
            4 => (key.clone(), text()).prop_map(|(key, value)| format!("<{key}>{value}</{key}>")),
            1 => key.prop_map(|key| format!("<{key} />")),
        ];
        prop::collection::vec(pair, 0..4).prop_map(|pairs| format!("<Metadata>{}</Metadata>", pairs.concat()))
    }

    fn properties() -> impl Strategy<Value = String> {
        let property = prop_oneof![
            3 => Just("<Last-Modified>Fri, 20 Nov 2026 11:59:00 GMT</Last-Modified>".to_owned()),
            3 => "<Etag>0x8D[A-F0-9]{1,13}</Etag>",
            1 => text().prop_map(|text| format!("<Etag>{text}</Etag>")),
            1 => text().prop_map(|text| format!("<Last-Modified>{text}</Last-Modified>")),
            1 => text().prop_map(|text| format!("<Creation-Time>{text}</Creation-Time>")),
            1 => Just("<Nested><Etag>no</Etag></Nested>".to_owned()),
            1 => Just("<Content-MD5 />".to_owned()),
            1 => Just("<Etag />".to_owned()),
            1 => Just("<Last-Modified/>".to_owned()),
        ];
        prop::collection::vec(property, 0..6).prop_map(|all| format!("<Properties>{}</Properties>", all.concat()))
    }

    fn blob_text() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            3 => text().prop_map(|name| format!("<Name>{name}</Name>")),
            1 => text().prop_map(|name| format!("<Name Encoded=\"true\">{name}%25</Name>")),
            4 => properties(),
            4 => metadata(),
            1 => Just("<OrMetadata />".to_owned()),
            1 => Just("<Tags><Name>no</Name></Tags>".to_owned()),
            1 => Just("<Name />".to_owned()),
            1 => Just("\n  ".to_owned()),
        ];
        prop_oneof![
            6 => prop::collection::vec(part, 0..6).prop_map(|parts| format!("<Blob>{}</Blob>", parts.concat())),
            1 => Just("<Blob/>".to_owned()),
            1 => Just("<BlobPrefix><Name>no</Name></BlobPrefix>".to_owned()),
            1 => Just("\n".to_owned()),
        ]
    }

    fn listing() -> impl Strategy<Value = String> {
        let marker = prop_oneof![Just("<NextMarker />".to_owned()), Just("<NextMarker>2!8</NextMarker>".to_owned())];
        (prop::collection::vec(blob_text(), 0..6), marker).prop_map(|(blobs, marker)| {
            format!(
                "\u{feff}<?xml version=\"1.0\"?><EnumerationResults A=\"b\"><Blobs>{}</Blobs>{marker}</EnumerationResults>",
                blobs.concat()
            )
        })
    }

    /// A change of one place: the byte there, some bytes removed, or a piece of the text repeated.
    fn mutated(text: &str, changes: &[(Index, Index, u8)]) -> Vec<u8> {
        let mut body = text.as_bytes().to_vec();
        for (at, other, byte) in changes {
            let at = at.index(body.len());
            let other = other.index(body.len());
            match byte % 4 {
                0 => body[at] = b"<>&/;\"! \xff"[usize::from(byte / 4) % 9],
                1 => drop(body.drain(at.min(other)..at.max(other).min(at.min(other) + 12))),
                2 => body.insert(at, *byte),
                _ => {
                    let piece = body[at.min(other)..at.max(other)].to_vec();
                    body.splice(at..at, piece);
                }
            }
            if body.is_empty() {
                break;
            }
        }
        body
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1024))]

        #[test]
        fn any_listing_is_read_alike_by_both(listing in listing()) {
            let parsed = said_by_parser(listing.as_bytes());
            match said_by_tree(listing.as_bytes()) {
                Some(said) => prop_assert_eq!(parsed.unwrap(), said),
                // An unknown entity in a property that is not used does no harm.
                None => prop_assert!(listing.contains("&nbsp;")),
            }
        }

        #[test]
        fn any_mutated_listing_is_read_alike(
            listing in listing(),
            changes in prop::collection::vec(any::<(Index, Index, u8)>(), 1..4),
        ) {
            prop_assert_eq!(find_difference(&mutated(&listing, &changes)), None);
        }

        #[test]
        fn any_bytes_are_parsed_or_rejected(body in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(find_difference(&body), None);
        }
    }
}
