// A processor of the Go SDK that reports by JSON lines.
//
// processor <settings as JSON> takes its share of the partitions. It reports its owner ID first, then the events that it
// processes, before their checkpoint, and its errors. Before the events of a partition, it reports after which
// checkpoint it starts. It shuts down gracefully when its standard input ends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2/checkpoints"

	"peers/connect"
	"peers/report"
)

const maxBatch = 50

type settings struct {
	connect.Settings
	Owner           string
	IntervalSeconds int `json:"interval_seconds"`
	ExpirySeconds   int `json:"expiry_seconds"`
}

// store remembers the checkpoints that its processor has listed: it lists them immediately before it starts partitions.
type store struct {
	*checkpoints.BlobStore
	lock   sync.Mutex
	listed map[string]*int64
}

func (s *store) ListCheckpoints(ctx context.Context, namespace, hub, group string, options *azeventhubs.ListCheckpointsOptions) ([]azeventhubs.Checkpoint, error) {
	found, err := s.BlobStore.ListCheckpoints(ctx, namespace, hub, group, options)
	s.lock.Lock()
	defer s.lock.Unlock()
	s.listed = map[string]*int64{}
	for _, checkpoint := range found {
		s.listed[checkpoint.PartitionID] = checkpoint.SequenceNumber
	}
	return found, err
}

func (s *store) checkpointOf(partition string) *int64 {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.listed[partition]
}

func failed(partition string, err error) {
	report.Line(map[string]any{"failed": fmt.Sprintf("partition %s: %v", partition, err)})
}

// process processes the events of a partition until another instance takes it, or the processor ends.
func process(ctx context.Context, client *azeventhubs.ProcessorPartitionClient, store *store) {
	partition := client.PartitionID()
	defer client.Close(context.WithoutCancel(ctx))
	report.Line(map[string]any{"started": partition, "checkpoint": store.checkpointOf(partition)})
	for ctx.Err() == nil {
		events, err := connect.Receive(ctx, client, maxBatch)
		if err != nil {
			failed(partition, err)
			return
		}
		if len(events) > 0 {
			numbers := []int64{}
			for _, event := range events {
				numbers = append(numbers, event.SequenceNumber)
			}
			report.Line(map[string]any{"processed": numbers, "partition": partition})
			if err := client.UpdateCheckpoint(context.WithoutCancel(ctx), events[len(events)-1], nil); err != nil {
				failed(partition, err)
				return
			}
		}
	}
}

func run(ctx context.Context, settings settings) error {
	blobStore, err := connect.Store(settings.Storage, settings.Container)
	if err != nil {
		return err
	}
	consumer, err := connect.Consumer(settings.Settings, settings.Owner)
	if err != nil {
		return err
	}
	defer consumer.Close(context.WithoutCancel(ctx))
	store := &store{BlobStore: blobStore}
	processor, err := azeventhubs.NewProcessor(consumer, store, &azeventhubs.ProcessorOptions{
		LoadBalancingStrategy:       azeventhubs.ProcessorStrategyGreedy,
		UpdateInterval:              time.Duration(settings.IntervalSeconds) * time.Second,
		PartitionExpirationDuration: time.Duration(settings.ExpirySeconds) * time.Second,
		StartPositions:              azeventhubs.StartPositions{Default: azeventhubs.StartPosition{Earliest: to.Ptr(true)}},
	})
	if err != nil {
		return err
	}
	return connect.Run(ctx, processor, func(client *azeventhubs.ProcessorPartitionClient) { process(ctx, client, store) })
}

func main() {
	var settings settings
	if err := json.Unmarshal([]byte(os.Args[1]), &settings); err != nil {
		panic(err)
	}
	report.Line(map[string]any{"versions": report.Versions()})
	report.Line(map[string]any{"owner": settings.Owner})
	ctx, shutDown := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		shutDown()
	}()
	if err := run(ctx, settings); err != nil {
		panic(err)
	}
}
