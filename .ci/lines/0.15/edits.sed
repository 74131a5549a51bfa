# Edits of the manifests.
s/^version = "0\.16\.0"$/version = "0.15.0"/
s/^\(eventhubs-checkpoint = { version = \)"0\.16\.0"/\1"0.15.0"/
s/^\(azure_core = { version = \)"[^"]*"/\1"1.1"/
s/^\(azure_core_amqp = { version = \)"[^"]*"/\1"1.1"/
s/^\(azure_identity = \)"[^"]*"/\1"1.0"/
s/^\(azure_messaging_eventhubs = \)"[^"]*"/\1"0.15"/
# Shared access signatures for emulators.
s/^    "dep:azure_core_amqp",$/&\n    "azure_core\/hmac_rust",/
# These packages need the newest client.
s/^members = .*/members = ["tests\/emulator"]/
s/^default-members = .*/default-members = [".", "tests\/emulator"]/
/^\[profile\.dev\.package\.eventhubs-checkpoint-lab\]$/,/^$/d
