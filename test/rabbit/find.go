package rabbit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Where packages put the real scripts. The ones on PATH of a Debian machine
// change user and directory and are no use here (broker facts §1).
var scriptDirs = []string{
	"/usr/lib/rabbitmq/bin",
	"/opt/homebrew/opt/rabbitmq/sbin",
	"/usr/local/opt/rabbitmq/sbin",
	"/home/linuxbrew/.linuxbrew/opt/rabbitmq/sbin",
}

var errMissing = errors.New("RabbitMQ is not installed")

func findScripts() (string, error) {
	for _, dir := range scriptDirs {
		if _, err := os.Stat(filepath.Join(dir, "rabbitmq-server")); err == nil {
			return dir, nil
		}
	}
	return "", missing()
}

func missing() error {
	line := "sudo apt-get install rabbitmq-server"
	if runtime.GOOS == "darwin" {
		line = "brew install rabbitmq"
	}
	return fmt.Errorf("%w; the tests run a private node of it. Install it with: %s", errMissing, line)
}

// toolPath is the PATH of the node: Erlang's and the system's places.
func toolPath() string {
	return strings.Join([]string{
		"/opt/homebrew/bin", "/usr/local/bin", "/home/linuxbrew/.linuxbrew/bin",
		"/usr/sbin", "/usr/bin", "/sbin", "/bin",
	}, ":")
}

func findEpmd() (string, error) {
	if path, err := exec.LookPath("epmd"); err == nil {
		return path, nil
	}
	for _, dir := range filepath.SplitList(toolPath()) {
		path := filepath.Join(dir, "epmd")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", missing()
}

// portBlock is how many ports in a row a node may use: AMQP, distribution,
// epmd, TLS, management.
const portBlock = 5
