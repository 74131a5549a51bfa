// A consumer of the Go SDK for the comparison of peers.
//
// consumer <settings as JSON> checkpoints after every batch. It reports its versions, the first event of each partition,
// and that it has processed the expected number of events, and ends when its standard input ends.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2/checkpoints"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"peers/report"
)

const maxBatch, maxWait = 100, time.Second

type settings struct {
	Storage       string
	Container     string
	EventHub      string `json:"event_hub"`
	Port          int
	ConsumerGroup string `json:"consumer_group"`
	Greedy        bool
	Expected      int64
}

// count counts the processed events of all partitions.
type count struct {
	processed atomic.Int64
	expected  int64
}

func (c *count) add(events int64) {
	processed := c.processed.Add(events)
	if processed >= c.expected && processed-events < c.expected {
		report.Line(map[string]any{"processed": processed})
	}
}

func process(ctx context.Context, client *azeventhubs.ProcessorPartitionClient, count *count) error {
	defer client.Close(ctx)
	for isFirst := true; ; {
		waiting, cancel := context.WithTimeout(ctx, maxWait)
		events, err := client.ReceiveEvents(waiting, maxBatch, nil)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if len(events) == 0 {
			continue
		}
		if isFirst {
			report.Line(map[string]any{"first": client.PartitionID()})
			isFirst = false
		}
		if err := client.UpdateCheckpoint(ctx, events[len(events)-1], nil); err != nil {
			return err
		}
		count.add(int64(len(events)))
	}
}

func run(ctx context.Context, settings settings) error {
	containerClient, err := container.NewClientFromConnectionString(settings.Storage, settings.Container, nil)
	if err != nil {
		return err
	}
	store, err := checkpoints.NewBlobStore(containerClient, nil)
	if err != nil {
		return err
	}
	consumer, err := azeventhubs.NewConsumerClientFromConnectionString(settings.EventHub, "", settings.ConsumerGroup, &azeventhubs.ConsumerClientOptions{
		CustomEndpoint: fmt.Sprintf("localhost:%d", settings.Port),
	})
	if err != nil {
		return err
	}
	options := &azeventhubs.ProcessorOptions{
		StartPositions: azeventhubs.StartPositions{Default: azeventhubs.StartPosition{Earliest: to.Ptr(true)}},
	}
	if settings.Greedy {
		options.LoadBalancingStrategy = azeventhubs.ProcessorStrategyGreedy
	}
	processor, err := azeventhubs.NewProcessor(consumer, store, options)
	if err != nil {
		return err
	}
	count := &count{expected: settings.Expected}
	go func() {
		for client := processor.NextPartitionClient(ctx); client != nil; client = processor.NextPartitionClient(ctx) {
			go func() {
				if err := process(ctx, client, count); err != nil {
					fmt.Fprintf(os.Stderr, "partition %s: %v\n", client.PartitionID(), err)
				}
			}()
		}
	}()
	return processor.Run(ctx)
}

func main() {
	var settings settings
	if err := json.Unmarshal([]byte(os.Args[1]), &settings); err != nil {
		panic(err)
	}
	report.Line(map[string]any{"versions": report.Versions()})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		// The other consumers end at once, too.
		os.Exit(0)
	}()
	if err := run(context.Background(), settings); err != nil {
		panic(err)
	}
}
