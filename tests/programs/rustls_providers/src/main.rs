//! Installs the provider that the application chooses, before anything opens a connection.

use eventhubs_checkpoint::AzureContainer;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    #[cfg(feature = "ring")]
    let provider = rustls::crypto::ring::default_provider();
    #[cfg(feature = "aws_lc")]
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.install_default().map_err(|_| "another provider is installed")?;

    let client = reqwest::Client::new();
    let container = AzureContainer::from_connection_string("UseDevelopmentStorage=true", "checkpoints")?;
    println!("{client:?} {container:?}");
    Ok(())
}
