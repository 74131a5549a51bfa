//! The storage of the example: in memory, an Azurite started by this program, or the one in the arguments.

use std::sync::Arc;

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
        if args.storage.storage_url.is_some() {
            return Self::in_azure(args);
        }
        match args.storage.storage.as_deref() {
            None if !args.hub.is_embedded() => Err("a real event hub needs storage that other processes can reach: \
                 set --storage or --storage-url (or --storage memory, to try one process)"
                .into()),
            None | Some("memory") => Ok(Self { container: Arc::new(MemoryContainer::new()), create: true }),
            Some("azurite") => {
                let storage = azurite::shared().await?.connection_string();
                let container = AzureContainer::from_connection_string(storage, &args.storage.container)?;
                Ok(Self { container: Arc::new(container), create: true })
            }
            Some(_) => Self::in_azure(args),
        }
    }

    fn in_azure(args: &Args) -> Result<Self, Failure> {
        let container = AzureContainer::builder(args.storage.access()?).build()?;
        Ok(Self { container: Arc::new(container), create: args.create_container })
    }
}
