//! What the manifest, the lock file, the source and the protocol page guarantee, read from the files of the package.

mod architecture;
mod cost_pages;
mod files;
mod manifest;
mod measures;
mod observability;
mod pages;
mod prose;
mod protocol_page;
