//! What the manifest, the lock file and the source promise, read from the files of the package.

mod architecture;
mod manifest;
