// Package connect opens the clients of the programs, and reads with them.
package connect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2/checkpoints"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

const maxWait = time.Second

// Settings name the storage and the event hub.
type Settings struct {
	Storage       string
	Container     string
	EventHub      string `json:"event_hub"`
	Port          int
	ConsumerGroup string `json:"consumer_group"`
}

// Store opens the checkpoint store in a container.
func Store(storage, name string) (*checkpoints.BlobStore, error) {
	client, err := container.NewClientFromConnectionString(storage, name, nil)
	if err != nil {
		return nil, err
	}
	return checkpoints.NewBlobStore(client, nil)
}

// Consumer opens the event hub. Without an instance id, the SDK draws one.
func Consumer(settings Settings, instanceID string) (*azeventhubs.ConsumerClient, error) {
	return azeventhubs.NewConsumerClientFromConnectionString(settings.EventHub, "", settings.ConsumerGroup,
		&azeventhubs.ConsumerClientOptions{
			InstanceID:     instanceID,
			CustomEndpoint: fmt.Sprintf("localhost:%d", settings.Port),
		})
}

// Run runs the processor, and calls process for each partition that it gets.
func Run(ctx context.Context, processor *azeventhubs.Processor, process func(*azeventhubs.ProcessorPartitionClient)) error {
	go func() {
		for client := processor.NextPartitionClient(ctx); client != nil; client = processor.NextPartitionClient(ctx) {
			go process(client)
		}
	}()
	return processor.Run(ctx)
}

// Receive waits for up to a second until count events are there. It may return none.
func Receive(ctx context.Context, client *azeventhubs.ProcessorPartitionClient, count int) ([]*azeventhubs.ReceivedEventData, error) {
	waiting, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	events, err := client.ReceiveEvents(waiting, count, nil)
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return events, err
}
