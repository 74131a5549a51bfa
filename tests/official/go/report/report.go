// Package report writes what a program has to say, as JSON lines.
package report

import (
	"encoding/json"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
)

var lock sync.Mutex

// Line writes one line at once: several goroutines report.
func Line(line map[string]any) {
	lock.Lock()
	defer lock.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		panic(err)
	}
}

// Versions returns those of Go and of the SDK.
func Versions() string {
	versions := []string{strings.Replace(runtime.Version(), "go", "Go ", 1)}
	build, _ := debug.ReadBuildInfo()
	for _, module := range build.Deps {
		if strings.Contains(module.Path, "/azeventhubs") || strings.HasSuffix(module.Path, "/azblob") {
			versions = append(versions, strings.TrimPrefix(module.Path, "github.com/Azure/azure-sdk-for-go/sdk/")+" "+module.Version)
		}
	}
	return strings.Join(versions, ", ")
}
