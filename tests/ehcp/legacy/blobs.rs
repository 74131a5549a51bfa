//! Blobs with contents and leases, which the stores of this crate do not write.

use reqwest::{Client, Method, RequestBuilder};

use crate::sas::{FUTURE, SAS_VERSION, account_sas};
use crate::support::azurite;

/// A container of other programs.
pub struct Blobs {
    client: Client,
    url: String,
}

impl Blobs {
    /// Creates the container, unless it exists.
    pub async fn create(container: &str) -> Self {
        let endpoint = azurite::shared().await.unwrap().endpoint();
        let blobs = Self { client: Client::new(), url: format!("{endpoint}/{container}") };
        let status = blobs.request(Method::PUT, "", "restype=container").send().await.unwrap().status();
        assert!(status.is_success() || status.as_u16() == 409, "{status}");
        blobs
    }

    /// Writes a blob.
    pub async fn put(&self, name: &str, content: &str) {
        let request = self.request(Method::PUT, name, "").header("x-ms-blob-type", "BlockBlob");
        // An empty body has none otherwise.
        let request = request.header("content-length", content.len());
        let response = request.body(content.to_owned()).send().await.unwrap();
        assert!(response.status().is_success(), "{}", response.text().await.unwrap());
    }

    /// Reads a blob.
    pub async fn get(&self, name: &str) -> String {
        self.request(Method::GET, name, "").send().await.unwrap().text().await.unwrap()
    }

    /// Acquires a lease, which does not expire.
    pub async fn lease(&self, name: &str) {
        let request = self.request(Method::PUT, name, "comp=lease").header("x-ms-lease-action", "acquire");
        let response = request.header("x-ms-lease-duration", "-1").send().await.unwrap();
        assert!(response.status().is_success(), "{}", response.text().await.unwrap());
    }

    fn request(&self, method: Method, name: &str, query: &str) -> RequestBuilder {
        let sas = account_sas("rwdlc", FUTURE);
        let url = match name {
            "" => format!("{}?{query}&{sas}", self.url),
            name => format!("{}/{}?{query}&{sas}", self.url, name.replace('$', "%24")),
        };
        self.client.request(method, url).header("x-ms-version", SAS_VERSION)
    }
}
