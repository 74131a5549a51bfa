//! The storage of the example: in memory, an Azurite started by this program, or the one in the arguments.

use std::sync::Arc;

use azure_identity::DeveloperToolsCredential;
use eventhubs_checkpoint::blob::BlobContainer;
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;

use crate::Failure;
use crate::args::Args;
use crate::support::azurite;

pub struct Storage {
    pub container: Arc<dyn BlobContainer>,
    /// Whether to create the container if it does not exist.
    pub create: bool,
}

impl Storage {
    pub async fn open(args: &Args) -> Result<Self, Failure> {
        if let Some(url) = &args.storage_url {
            let url = format!("{}/{}", url.trim_end_matches('/'), args.container);
            let container = AzureContainer::from_credential(url, DeveloperToolsCredential::new(None)?)?;
            return Ok(Self::of_container(args, container));
        }
        match args.storage.as_deref() {
            None if !args.is_embedded() => Err("a real event hub needs a storage that other processes can reach: \
                 set --storage or --storage-url (or --storage memory, to try one process)"
                .into()),
            None | Some("memory") => Ok(Self { container: Arc::new(MemoryContainer::new()), create: true }),
            Some("azurite") => {
                let storage = azurite::shared().await?.connection_string();
                let container = AzureContainer::from_connection_string(storage, &args.container)?;
                Ok(Self { container: Arc::new(container), create: true })
            }
            Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
                // The URL of a container, or of the account.
                let container = AzureContainer::from_sas_url(url)
                    .or_else(|_| AzureContainer::from_account_sas_url(url, &args.container))?;
                Ok(Self::of_container(args, container))
            }
            Some(text) => Ok(Self::of_container(args, AzureContainer::from_connection_string(text, &args.container)?)),
        }
    }

    fn of_container(args: &Args, container: AzureContainer) -> Self {
        Self { container: Arc::new(container), create: args.create_container }
    }
}
