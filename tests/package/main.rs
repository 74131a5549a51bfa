//! What the manifest, the lock file, the source and the protocol page guarantee, read from the files of the package.

mod architecture;
mod manifest;
mod observability;
mod prose;
mod protocol_page;
