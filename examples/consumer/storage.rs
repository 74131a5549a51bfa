//! The storage of the sample: in memory, Azurite started here, or wherever the arguments point.

use std::sync::Arc;

use azure_identity::DeveloperToolsCredential;
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;

use crate::Failure;
use crate::args::Args;
use crate::support::azurite::Azurite;

pub struct Storage {
    pub container: Arc<dyn BlobContainer>,
    /// Whether the container is the sample's own to make.
    pub create: bool,
    /// Lives as long as this does.
    _azurite: Option<Azurite>,
}

impl Storage {
    pub async fn open(args: &Args) -> Result<Self, Failure> {
        if let Some(url) = &args.storage_url {
            let url = format!("{}/{}", url.trim_end_matches('/'), args.container);
            let container = AzureContainer::with_token(url, DeveloperToolsCredential::new(None)?)?;
            return Ok(Self::existing(container));
        }
        match args.storage.as_deref() {
            None if !args.is_embedded() => Err("a real event hub needs a storage that other processes can reach: \
                 give --storage or --storage-url (or --storage memory, to try it out alone)"
                .into()),
            None | Some("memory") => {
                Ok(Self { container: Arc::new(MemoryContainer::new()), create: true, _azurite: None })
            }
            Some("azurite") => {
                let azurite = Azurite::start().await?;
                let container = AzureContainer::from_connection_string(azurite.connection_string(), &args.container)?;
                Ok(Self { container: Arc::new(container), create: true, _azurite: Some(azurite) })
            }
            Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
                Ok(Self::existing(AzureContainer::from_sas_url(url)?))
            }
            Some(text) => Ok(Self::existing(AzureContainer::from_connection_string(text, &args.container)?)),
        }
    }

    fn existing(container: AzureContainer) -> Self {
        Self { container: Arc::new(container), create: false, _azurite: None }
    }
}
