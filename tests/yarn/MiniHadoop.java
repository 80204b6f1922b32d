import java.io.BufferedReader;
import java.io.File;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;
import org.apache.hadoop.hdfs.server.namenode.NameNodeAdapter;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * A real HDFS and a real YARN on loopback: one name node, one data node, one resource manager, one node manager. With
 * the argument "hdfs" there are two name nodes, and no YARN. Each line of stdin is an order to a name node: "safe 0".
 */
public final class MiniHadoop {
    public static void main(String[] arguments) throws Exception {
        Path root = Path.of(arguments[0]);
        Path conf = Files.createDirectories(root.resolve("conf"));
        YarnConfiguration wanted = new YarnConfiguration();
        wanted.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
        // The mini cluster puts its own default of 4096 over "yarn.nodemanager.resource.memory-mb".
        wanted.setInt("yarn.minicluster.yarn.nodemanager.resource.memory-mb", 16384);
        wanted.setInt("yarn.nodemanager.resource.cpu-vcores", 32);
        wanted.setInt("yarn.scheduler.minimum-allocation-mb", 128);
        wanted.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99");
        wanted.set("yarn.scheduler.capacity.root.queues", "default");
        wanted.set("yarn.scheduler.capacity.root.default.capacity", "100");
        wanted.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.9");
        boolean alone = arguments.length > 1;
        MiniDFSCluster.Builder building = new MiniDFSCluster.Builder(wanted, root.resolve("hdfs").toFile());
        if (alone) {
            wanted.setInt("dfs.ls.limit", 3); // names in a page of a listing
            building.nnTopology(MiniDFSNNTopology.simpleHATopology());
        }
        MiniDFSCluster files = building.numDataNodes(1).build();
        if (alone) {
            files.transitionToActive(0);
        }
        files.waitActive();
        // Whoever submits first makes /user, and it would be that user's alone.
        for (String folder : new String[] {"/", "/user"}) {
            org.apache.hadoop.fs.Path path = new org.apache.hadoop.fs.Path(folder);
            files.getFileSystem(0).mkdirs(path);
            files.getFileSystem(0).setPermission(path, new FsPermission("777"));
        }
        Configuration told = alone ? wanted : yarn(root, wanted);
        told.set("fs.defaultFS", files.getFileSystem(0).getUri().toString());
        for (int node = 0; node < files.getNumNameNodes(); node++) {
            told.set("trident.rpc-address." + node, files.getNameNode(node).getNameNodeAddressHostPortString());
            told.set("trident.http-address." + node, files.getHttpUri(node).substring("http://".length()));
        }
        // The mapping that the cluster runs with is a class of its tests, which no client has.
        told.set("net.topology.node.switch.mapping.impl", "org.apache.hadoop.net.ScriptBasedMapping");
        for (String name : new String[] {"core-site.xml", "hdfs-site.xml", "yarn-site.xml"}) {
            File draft = conf.resolve(name + ".draft").toFile();
            try (OutputStream out = new FileOutputStream(draft)) {
                told.writeXml(out);
            }
            Files.move(draft.toPath(), conf.resolve(name), StandardCopyOption.ATOMIC_MOVE);
        }
        System.out.println("up");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            done(order, files);
            System.out.println("done");
        }
        System.exit(0); // whoever started it is gone
    }

    private static void done(String order, MiniDFSCluster files) throws Exception {
        String[] words = order.split(" ");
        int node = Integer.parseInt(words[1]);
        switch (words[0]) {
            case "active" -> {
                files.transitionToStandby(1 - node);
                files.transitionToActive(node);
            }
            case "standby" -> files.transitionToStandby(node);
            case "safe" -> NameNodeAdapter.enterSafeMode(files.getNameNode(node), false);
            case "unsafe" -> NameNodeAdapter.leaveSafeMode(files.getNameNode(node));
            default -> throw new IllegalArgumentException(order);
        }
    }

    private static Configuration yarn(Path root, YarnConfiguration wanted) throws Exception {
        System.setProperty("test.build.data", root.resolve("yarn").toString());
        MiniYARNCluster cluster = new MiniYARNCluster("trident", 1, 1, 1);
        cluster.init(wanted);
        cluster.start();
        if (!cluster.waitForNodeManagersToConnect(60_000)) {
            throw new IllegalStateException("the node manager did not register within 60 s");
        }
        return new Configuration(cluster.getConfig());
    }
}
