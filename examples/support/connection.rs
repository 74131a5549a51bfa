//! The arguments that say which storage and which event hub an example connects to.

use azure_identity::DeveloperToolsCredential;
use clap::Args;
use eventhubs_checkpoint::blob::azure::{Access, AzureContainer};
use serde::{Deserialize, Serialize};

use crate::Failure;

// No doc comments on the types: clap would use them as the description of the program.

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct StorageArgs {
    /// The storage of the records: `memory`, `azurite` (started by this program), a connection string, or a SAS URL.
    #[arg(long, env = "AZURE_STORAGE_CONNECTION_STRING", hide_env_values = true, value_name = "STORAGE")]
    pub storage: Option<String>,

    /// The URL of the storage account, for Entra ID: `https://ACCOUNT.blob.core.windows.net`.
    #[arg(long, value_name = "URL")]
    pub storage_url: Option<String>,

    /// The container for the records.
    #[arg(long, default_value = "checkpoints", value_name = "NAME")]
    pub container: String,
}

impl StorageArgs {
    /// Returns the access to a container of Azure.
    pub fn access(&self) -> Result<Access, Failure> {
        if let Some(url) = &self.storage_url {
            let url = format!("{}/{}", url.trim_end_matches('/'), self.container);
            return Ok(Access::token(url, DeveloperToolsCredential::new(None)?));
        }
        match self.storage.as_deref() {
            Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
                // The URL of a container, or of the account.
                let names_container = AzureContainer::from_sas_url(url).is_ok();
                Ok(if names_container { Access::sas_url(url) } else { Access::account_sas_url(url, &self.container) })
            }
            text => Ok(Access::connection_string(text.unwrap_or_default(), &self.container)),
        }
    }
}

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct HubArgs {
    /// The event hub: `embedded` (an emulator in this process) or a connection string.
    #[arg(long, env = "EVENTHUBS_CONNECTION_STRING", hide_env_values = true, value_name = "HUB")]
    pub hub: Option<String>,

    /// Connects to this address instead of the namespace: `amqp://127.0.0.1:PORT` for an emulator.
    #[arg(long, env = "EVENTHUBS_ENDPOINT", value_name = "ADDRESS")]
    pub hub_endpoint: Option<String>,

    /// The namespace, for Entra ID: `NAME.servicebus.windows.net`.
    #[arg(long, value_name = "HOST")]
    pub namespace: Option<String>,

    /// The name of the event hub, if the connection string does not contain it.
    #[arg(long, value_name = "NAME")]
    pub event_hub: Option<String>,

    /// The consumer group.
    #[arg(long, default_value = "$Default", value_name = "NAME")]
    pub consumer_group: String,
}

impl HubArgs {
    pub fn is_embedded(&self) -> bool {
        self.namespace.is_none() && self.hub.as_deref().is_none_or(|hub| hub == "embedded")
    }
}
