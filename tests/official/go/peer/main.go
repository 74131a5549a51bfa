// The checkpoint store of the Go SDK, driven by JSON lines.
//
// peer <namespace> <hub> <consumer group>, with CONNECTION_STRING set, responds to each line of its standard input with
// one of {"ok": ...} or {"error": ...}, and ends with it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2/checkpoints"

	"peers/connect"
	"peers/report"
)

const deadline = 30 * time.Second

var namespace, hub, group = os.Args[1], os.Args[2], os.Args[3]

type command struct {
	Do             string
	Container      string
	Partition      string
	Owner          string
	ETag           *azcore.ETag
	SequenceNumber int64 `json:"sequence_number"`
	Offset         string
}

type owned struct {
	Partition string       `json:"partition"`
	Owner     string       `json:"owner"`
	ETag      *azcore.ETag `json:"etag"`
}

type reached struct {
	Partition      string  `json:"partition"`
	SequenceNumber *int64  `json:"sequence_number"`
	Offset         *string `json:"offset"`
}

func shown(ownerships []azeventhubs.Ownership, err error) ([]owned, error) {
	all := []owned{}
	for _, it := range ownerships {
		all = append(all, owned{it.PartitionID, it.OwnerID, it.ETag})
	}
	return all, err
}

func claim(ctx context.Context, store *checkpoints.BlobStore, command command) ([]owned, error) {
	return shown(store.ClaimOwnership(ctx, []azeventhubs.Ownership{{
		FullyQualifiedNamespace: namespace, EventHubName: hub, ConsumerGroup: group,
		PartitionID: command.Partition, OwnerID: command.Owner, ETag: command.ETag,
	}}, nil))
}

func checkpoint(ctx context.Context, store *checkpoints.BlobStore, command command) error {
	return store.SetCheckpoint(ctx, azeventhubs.Checkpoint{
		FullyQualifiedNamespace: namespace, EventHubName: hub, ConsumerGroup: group,
		PartitionID: command.Partition, SequenceNumber: &command.SequenceNumber, Offset: &command.Offset,
	}, nil)
}

func listCheckpoints(ctx context.Context, store *checkpoints.BlobStore) ([]reached, error) {
	listed, err := store.ListCheckpoints(ctx, namespace, hub, group, nil)
	all := []reached{}
	for _, it := range listed {
		all = append(all, reached{it.PartitionID, it.SequenceNumber, it.Offset})
	}
	return all, err
}

func execute(command command) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	store, err := connect.Store(os.Getenv("CONNECTION_STRING"), command.Container)
	if err != nil {
		return nil, err
	}
	switch command.Do {
	case "ownerships":
		return shown(store.ListOwnership(ctx, namespace, hub, group, nil))
	case "claim":
		return claim(ctx, store, command)
	case "checkpoint":
		return nil, checkpoint(ctx, store, command)
	case "checkpoints":
		return listCheckpoints(ctx, store)
	}
	return report.Versions(), nil
}

func main() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var command command
		err := json.Unmarshal(lines.Bytes(), &command)
		var ok any
		if err == nil {
			ok, err = execute(command)
		}
		if err != nil {
			report.Line(map[string]any{"error": err.Error()})
		} else {
			report.Line(map[string]any{"ok": ok})
		}
	}
}
