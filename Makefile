# What a developer runs. `make` alone lists the targets.

GO          ?= go
PREFIX      ?= $(HOME)/.local
RACE        ?= -race
PKG         ?= ./test/e2e ./...
FUZZTIME    ?= 20s
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2

# An older Go fetches the one that go.mod asks for, also where its packager
# has that switched off. What the environment says goes first.
GOTOOLCHAIN ?= auto
export GOTOOLCHAIN

.DEFAULT_GOAL := help
.PHONY: help build install demo test foreign bench crash lint fuzz attack

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## build bin/bridged
	@test/setup go roots
	$(GO) build -o bin/bridged ./cmd/bridged

install: build ## put bridged into PREFIX/bin (PREFIX=~/.local)
	@mkdir -p "$(DESTDIR)$(PREFIX)/bin"
	install -m 755 bin/bridged "$(DESTDIR)$(PREFIX)/bin/bridged"
	@case ":$$PATH:" in *":$(PREFIX)/bin:"*) ;; *) echo "note: $(PREFIX)/bin is not on your PATH" ;; esac

# The binary itself takes the place of the recipe's shell, so that a signal to
# make reaches it and it can stop what it started.
demo: ## show two gateways, agents and a main at work (in a minute and a half)
	@test/setup go roots broker
	@$(GO) build -o bin/demo ./test/demo
	@exec bin/demo

# Two packages at a time: many of them run a broker of their own. The one that
# takes longest, and waits for most of it, comes first and beside all others.
test: ## vet and all tests, with the race detector (RACE= without, PKG=./x for one)
	@test/setup go roots broker $(if $(RACE),compiler)
	$(GO) vet $(PKG)
	$(if $(RACE),CGO_ENABLED=1 )$(GO) test $(RACE) -count=1 -p 2 -timeout 25m $(TESTFLAGS) $(PKG)

# npm ci takes what package-lock.json names and nothing else.
foreign: ## the tools, used by an MCP client of others: the official TypeScript SDK
	@test/setup go roots node
	cd test/foreign && npm ci
	$(GO) vet -tags foreign ./test/foreign
	$(GO) test -tags foreign -count=1 -timeout 12m ./test/foreign

bench: ## what the gateway adds to the raw path, with bars (BENCHFLAGS="--only trip --steps")
	@test/setup go roots broker
	@$(GO) build -o bin/bench ./test/bench
	@exec bin/bench $(BENCHFLAGS)

crash: ## every fault at every step, which takes long (CRASHFLAGS="-seed 1 -only 'inbox.* kill'")
	@test/setup go roots broker
	@$(GO) build -o bin/crash ./test/crash
	@exec bin/crash $(CRASHFLAGS)

lint: ## gofmt, go vet, staticcheck
	@test/setup go roots
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .) && if [ -n "$$unformatted" ]; then \
		echo "not formatted; run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

attack: ## every line of the threat model in docs/security.md, attacked (ATTACKFLAGS=-v)
	@test/setup go roots broker
	@$(GO) build -o bin/attack ./test/attack
	@exec bin/attack $(ATTACKFLAGS)

fuzz: ## every fuzz target for FUZZTIME each (20s)
	@test/setup go roots
	@grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sort | while IFS=: read -r file target; do \
		echo "$${file%/*} $${target#func }"; \
		$(GO) test -run '^$$' -fuzz "^$${target#func }\$$" -fuzztime $(FUZZTIME) "$${file%/*}" || exit 1; \
	done
