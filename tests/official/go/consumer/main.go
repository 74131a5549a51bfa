// A consumer of the Go SDK for the comparison of peers.
//
// consumer <settings as JSON> checkpoints after every batch. It reports its versions, the first event of each partition,
// and that it has processed the expected number of events, and ends when its standard input ends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"

	"peers/connect"
	"peers/report"
)

const maxBatch = 100

type settings struct {
	connect.Settings
	Greedy   bool
	Expected int64
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
		events, err := connect.Receive(ctx, client, maxBatch)
		if err != nil {
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
	store, err := connect.Store(settings.Storage, settings.Container)
	if err != nil {
		return err
	}
	consumer, err := connect.Consumer(settings.Settings, "")
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
	return connect.Run(ctx, processor, func(client *azeventhubs.ProcessorPartitionClient) {
		if err := process(ctx, client, count); err != nil {
			fmt.Fprintf(os.Stderr, "partition %s: %v\n", client.PartitionID(), err)
		}
	})
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
