package readme

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A service that is broken into, or a command that "joblock run" executes, is kept from the kernel and the devices.
func TestUnitsAreSandboxed(t *testing.T) {
	files, err := filepath.Glob(root + "deploy/systemd/*.service")
	if err != nil || len(files) < 2 {
		t.Fatalf("%d units: %v", len(files), err)
	}
	setting := regexp.MustCompile(`(?m)^(\w+)=(.*)$`)
	for _, file := range files {
		name := "deploy/systemd/" + filepath.Base(file)
		set := make(map[string]string)
		for _, m := range setting.FindAllStringSubmatch(read(t, name), -1) {
			set[m[1]] = m[2]
		}
		for _, key := range strings.Fields("NoNewPrivileges PrivateDevices ProtectKernelTunables ProtectKernelModules ProtectKernelLogs ProtectControlGroups RestrictSUIDSGID") {
			if set[key] != "yes" {
				t.Errorf("%s: %s is %q, want yes", name, key, set[key])
			}
		}
		if !strings.HasPrefix(set["SystemCallFilter"], "@system-service") {
			t.Errorf("%s: SystemCallFilter is %q, want @system-service", name, set["SystemCallFilter"])
		}
	}
}
